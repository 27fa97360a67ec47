"""What makes a program a training job."""

import sys
from typing import Annotated, Literal

from supervisor.config.schema import quantities, texts, words
from supervisor.config.schema.section import (
    INTERPRETER,
    Boolean,
    FilePath,
    Positive,
    PositiveBytes,
    Seconds,
    SectionModel,
    Timeout,
    key,
    parsed_by,
    required,
    section_model,
)
from supervisor.core.program.facts import Durable, OnNotice, OnOom
from supervisor.core.standby.facts import StandbyKind
from supervisor.protocol.allocation import MAX_NODES
from supervisor.protocol.checkpoints.retention import CHECKPOINT_KEEP
from supervisor.protocol.mirror.keys import store_url
from supervisor.protocol.wire.launch import (
    CHECKPOINT_INTERVAL_MAX,
    CHECKPOINT_INTERVAL_MIN,
    Interval,
    MemoryCheckpoint,
    OnNan,
    OnReplayDifference,
    SaveShards,
    Strategy,
)

MAX_WORKERS = 64
"""More than GPUs in any host; each is a process with its own TensorFlow."""


@section_model
class JobConfig(SectionModel):
    """What makes a program a training job. The keys stand in the program's own section."""

    checkpoint_dir: FilePath = required(
        "Folder of the job's checkpoints, on a disk that survives the host if training must. It makes the program a "
        "training job.",
        shown="none: the program is not a job",
    )
    initial_checkpoint: FilePath | None = key(
        None,
        "Checkpoint to begin from while checkpoint_dir has none: a folder, whose newest whole checkpoint is used, or a "
        "prefix (`/srv/old/model.ckpt-1200`), by CheckpointManager, TF1's Saver or another stepkeeper job.",
        shown="none: what another program left in checkpoint_dir, else step 0",
    )
    restore_from_jobs: Annotated[tuple[str, ...], parsed_by(texts.name_list)] = key(
        (),
        "Other jobs whose checkpoints in checkpoint_dir it may restore, such as its former name; `*` means any "
        "(docs/storage.md).",
        shown="none: only its own",
    )
    export_dir: FilePath | None = key(
        None,
        "Folder for the trained model: a SavedModel in `export_dir/STEP/`, at the end of training and with "
        "`supervisorctl export`.",
        shown="none: no export",
    )
    entrypoint: Annotated[str, parsed_by(texts.entrypoint)] | None = key(
        None,
        "Function that trains: `package.module:function`, for `command = python -m worker package.module:function`.",
        shown="none: the command is used",
    )
    python: Annotated[str, INTERPRETER] = key(
        sys.executable,
        "Interpreter that runs the entrypoint: a path, or a name to search for.",
        shown="the daemon's interpreter",
    )
    strategy: Strategy | None = key(
        None,
        "What `worker.strategy()` returns: auto, mirrored, one-device, multiworker or tpu (docs/strategies.md).",
        shown="what the script asks for, else auto",
    )
    replicas: Positive | None = key(
        None,
        "How many devices to use; without GPUs, this many logical CPU devices are created.",
        shown="every GPU, or one CPU device",
    )
    replicas_min: Positive | None = key(
        None,
        "Fewest devices to train on if GPUs are missing or broken (docs/strategies.md).",
        shown="none: the job waits for a GPU that was there before and is gone or broken",
    )
    workers: Annotated[int, parsed_by(lambda text: quantities.whole_number(text, 2, MAX_WORKERS))] | None = key(
        None,
        "How many processes train together on this host with `strategy = multiworker` (docs/strategies.md).",
        shown="one process; with several hosts, `TF_CONFIG` says which one it is",
    )
    nodes: Annotated[int, parsed_by(lambda text: quantities.whole_number(text, 2, MAX_NODES))] | None = key(
        None,
        "How many nodes train with `strategy = multiworker` under Slurm or in a JobSet; further ones are spare "
        "(docs/slurm.md).",
        shown="all that the job got",
    )
    deterministic: Boolean = key(
        False,
        "Whether training uses only deterministic operations, of which some are slower and some are missing; in "
        "PyTorch and TF1 the script must call prepare().",
    )
    strict: Boolean = key(
        False,
        "Whether training ends where the worker names something that a restart would not bring back "
        "(docs/exact-resume.md).",
    )
    checkpoint_interval: Annotated[Interval | None, parsed_by(quantities.interval)] = key(
        None,
        "How often to save: `500 steps`, `10 minutes`, or auto (docs/saves.md). A stop or a notice flushes in any "
        "case.",
        shown="what the script says, else auto",
    )
    checkpoint_interval_min: Timeout = key(
        CHECKPOINT_INTERVAL_MIN,
        "Shortest automatic interval. The first two saves come this early.",
    )
    checkpoint_interval_max: Timeout = key(
        CHECKPOINT_INTERVAL_MAX,
        "Longest automatic interval.",
    )
    memory_checkpoint: MemoryCheckpoint = key(
        "auto",
        "Whether the worker also copies its state into memory that outlives it (docs/memory-tier.md): `auto`, where "
        "that costs little; `off`.",
    )
    checkpoint_make_room: Boolean = key(
        False,
        "Whether a save that finds the disk full may delete older checkpoints and try again: the oldest first, never "
        "the newest whole one, the newest attempt's, the newest that was not left in memory by a dead worker, or what "
        "this attempt began from.",
    )
    checkpoint_dir_shared: Boolean = key(
        True,
        "Whether all nodes of a gang see the same checkpoint_dir. `false`: each has a folder on its own disk, and the"
        " `mirror` joins them (docs/slurm.md).",
    )
    save_shards: SaveShards = key(
        "auto",
        "Whether each of several workers writes and reads its share of a checkpoint: `auto`, if it is worth it "
        "(docs/strategies.md); `always`; `never`.",
    )
    checkpoint_keep: Positive = key(
        CHECKPOINT_KEEP,
        "How many of the newest checkpoints are kept; the newest may turn out to be damaged.",
    )
    checkpoint_keep_every: Annotated[float, parsed_by(quantities.hours)] | None = key(
        None, "In addition, one checkpoint of each such period is kept, such as `6 hours`.", shown="none"
    )
    checkpoint_keep_best: Annotated[tuple[Literal["min", "max"], str], parsed_by(texts.best_rule)] | None = key(
        None, "In addition, the best checkpoint by a metric is kept: `min loss` or `max accuracy`.", shown="none"
    )
    mirror: Annotated[str, parsed_by(store_url)] | None = key(
        None,
        "Object store that gets a copy of the checkpoints (docs/mirror.md): `s3://BUCKET/PREFIX`, `gs://`, `az://` or"
        " `file:///FOLDER`; the job's name is added. Needs the extra `mirror`.",
        shown="none",
    )
    mirror_keep: Positive = key(
        5,
        "How many of the newest checkpoints are kept in the store. The newest that a live worker saved stays as well.",
    )
    mirror_rate_limit: PositiveBytes | None = key(
        None,
        "Bytes (`50MB`) uploaded per second at most, except while a flush before a deadline waits for an upload "
        "(`durable = remote`).",
        shown="none",
    )
    durable: Durable = key(
        Durable.LOCAL,
        "What `supervisorctl checkpoint` and a flush before the host goes away wait for: this host's disk (`local`), "
        "or also the mirror (`remote`, docs/mirror.md).",
    )
    startup_timeout: Timeout = key(
        600.0,
        "Seconds from the start to the first step; then the worker is killed and started again.",
    )
    flush_timeout: Timeout = key(
        120.0,
        "Seconds that a worker has to finish its step and write a checkpoint before it is told to exit.",
    )
    on_notice: OnNotice = key(
        OnNotice.STOP,
        "What the worker does after its last checkpoint before the host goes away: `stop` exits, and starts again if "
        "the host stays; `train` trains on until it is killed.",
    )
    notice_margin: Seconds = key(
        1.0,
        "Seconds between the expected end of the last checkpoint and the host's deadline.",
    )
    hang_timeout: Annotated[float | Literal["auto"] | None, parsed_by(quantities.learned_timeout)] = key(
        "auto",
        "Seconds without a step after which a worker counts as hung and is restarted. `auto` learns the limit from "
        "the job's own pauses (docs/hangs.md). `none` turns this off.",
    )
    hang_timeout_min: Timeout = key(
        600.0,  # PyTorch's limit for its collectives: ending a slow step costs more than an idle machine
        "Shortest limit of `hang_timeout = auto`; half of it for the start-up, three times as much for an evaluation.",
    )
    hang_evidence: Annotated[float | None, parsed_by(quantities.timeout_or_none)] = key(
        60.0,
        "Seconds of silence, and at least 20 usual steps, after which the daemon ends a job that provably hangs "
        "(docs/hangs.md). `none`: only silence counts.",
    )
    gpu_wait: Timeout = key(
        30.0,
        "Most seconds that a start waits for GPU memory that the last attempt still holds. Needs NVIDIA's driver and "
        "the extra `nvml`.",
    )
    standby: Annotated[StandbyKind, parsed_by(words.one_of(StandbyKind, {"false": "off", "none": "off"}))] = key(
        StandbyKind.AUTO,
        "Process beside the worker that becomes the next attempt when it dies (docs/standby.md): `auto` has done the "
        "imports, where memory allows; `warm` and `hot` more of the start; `off`: none.",
    )
    on_nan: OnNan | None = key(
        None,
        "What to do when training diverges (docs/failures.md): `stop` fails the job; `rollback` resumes from an "
        "earlier checkpoint; `skip` also leaves out the batches in question; `off` does not check.",
        shown="what the script says, else stop",
    )
    loss_spike: Annotated[float | None, parsed_by(quantities.loss_spike)] = key(
        None,
        "How many deviations above its recent median a loss counts as diverged, for example 20 (docs/failures.md).",
        shown="off",
    )
    replay: Annotated[float | None, parsed_by(quantities.replay)] = key(
        None,
        "Most of training time, for example `1%`, in which steps are trained again to compare the bits "
        "(docs/replay.md). Needs `deterministic = true`.",
        shown="off",
    )
    on_replay_difference: OnReplayDifference = key(
        "warn",
        "When they differ, `warn` tells everybody and trains on from the first result; `stop` fails the job.",
    )
    on_oom: OnOom = key(
        OnOom.RESTART,
        "When the job runs out of memory: `restart` it, or `microbatch`, which also divides each batch into twice as "
        "many parts, if the script supports it (docs/failures.md).",
    )
