"""The settings that a worker is started with: one environment variable that holds JSON.

The daemon writes the whole record (`Launch.to_environment`), the worker reads it (`from_environment`), and nothing else
reads the environment. A setting has the name of its key in the configuration, and its default is stated here.
docs/control-pipe.md describes the record for programs that are not Python.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from supervisor.protocol.checkpoints.retention import CHECKPOINT_KEEP, RetentionPolicy
from supervisor.protocol.layout import UNNAMED_JOB
from supervisor.protocol.numbers import UNITS
from supervisor.protocol.wire.codec import ProtocolError, decode_record, encode_record, parse_object
from supervisor.protocol.wire.messages import PROTOCOL, STANDBY

VARIABLE = "STEPKEEPER_LAUNCH"
INITIAL_CHECKPOINT = "STEPKEEPER_INITIAL_CHECKPOINT"
"""For scripts that are started by hand; the record wins over it."""

MIRROR = "STEPKEEPER_MIRROR"
"""For scripts that are started by hand: the URL of a run in a store, from which they begin (docs/mirror.md)."""

HASH_SEED = "0"
"""PYTHONHASHSEED of jobs whose environment has none. Without it each process orders a set of texts in its own way, and
so, for example, gives words other numbers."""
PROOF = "STEPKEEPER_PROOF"
"""Set while a proof of exactness runs the script (docs/proof.md): the folder of its plan and of its record."""

Strategy = Literal["auto", "mirrored", "one-device", "multiworker", "tpu"]
OnNan = Literal["stop", "rollback", "skip", "off"]
OnReplayDifference = Literal["warn", "stop"]
SaveShards = Literal["auto", "always", "never"]
LEAST_READING_TOGETHER = 8  # a server on 25 Gbit/s gives each of 8 hosts as much as TensorFlow's workers exchange
Standby = Literal["warm", "hot"]
MemoryCheckpoint = Literal["auto", "off"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
ON_NAN: tuple[OnNan, ...] = get_args(OnNan)
ON_REPLAY_DIFFERENCE: tuple[OnReplayDifference, ...] = get_args(OnReplayDifference)

CHECKPOINT_INTERVAL_MIN = 30.0  # seconds: less lost work hardly matters, and the disk has other users
CHECKPOINT_INTERVAL_MAX = 1800.0  # seconds: what a crash may cost, however rare crashes were so far

_MAX_STEPS = 1e15  # beyond, a float counts no longer by ones
_AMOUNT = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?(?:e[+-]?[0-9]{1,3})?)\s*([a-z]+)\s*", re.IGNORECASE)


class LaunchError(ValueError):
    """The launch variable can't be used; the text names it and says why."""


@dataclass(frozen=True, slots=True)
class Interval:
    """How often to save: every so many steps, or seconds; exactly one of the two is set."""

    steps: int | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        if self.seconds is None:
            return f"{self.steps} steps"
        short = f"{self.seconds:g}"
        return f"{short if float(short) == self.seconds else repr(self.seconds)} seconds"


def parse_interval(text: str) -> Interval:
    """`500 steps`, `90 s`, `10 minutes`, `1.5 hours`. Raises ValueError."""
    match = _AMOUNT.fullmatch(text)
    if match is not None:
        amount, unit = float(match[1]), match[2].lower()
        if unit in ("steps", "step") and 1 <= amount <= _MAX_STEPS and amount.is_integer():
            return Interval(steps=int(amount))
        if unit in UNITS and 0 < (seconds := amount * UNITS[unit]) < math.inf:
            return Interval(seconds=seconds)
    raise ValueError(f"{text!r} is not an interval; write for example '500 steps', '90 seconds' or '10 minutes'")


@dataclass(frozen=True, slots=True)
class Control:
    """Of a worker under a daemon: its attempt, and the folder that holds its two control pipes.

    A standby has attempt 0 (`messages.STANDBY`) until it is promoted.
    """

    attempt: int
    pipes: Path


@dataclass(frozen=True, slots=True)
class Member:
    """Of a process that the job's first process started to train beside it: its rank, from 1, and the descriptor of
    the socket between the two."""

    rank: int
    link: int


@dataclass(frozen=True, slots=True)
class DaemonIdentity:
    """The process that a standby belongs to. `start_time`: kernel ticks after boot."""

    pid: int
    start_time: int


@dataclass(frozen=True, slots=True)
class Launch:
    """All settings of one worker. A setting that is None is left to the script.

    Those with the name of a configuration key mean what docs/configuration.md says of it; lengths of time are in
    seconds, `checkpoint_keep_every` in hours, `replay` is a share from 0 to 1. `between_failures_s`: the mean time
    between this job's failures, for an interval that the worker chooses itself. `microbatches`: into how many parts
    each batch is divided. `waits_for`: this process is a standby of that daemon and not an attempt yet. `member`:
    it trains beside the job's own process. `generation`: of the gang of several nodes that it belongs to; whoever
    has another one is not let in. `leaves_with`: the daemon that it does not outlive for long; other workers train
    on until the next one adopts them.
    """

    job: str = UNNAMED_JOB
    control: Control | None = None
    checkpoint_dir: Path | None = None
    checkpoint_dir_shared: bool = True
    initial_checkpoint: Path | None = None
    export_dir: Path | None = None
    strategy: Strategy | None = None
    replicas: int | None = None
    replicas_min: int | None = None
    workers: int | None = None
    deterministic: bool = False
    strict: bool = False
    checkpoint_interval: Interval | None = None
    checkpoint_interval_min: float = CHECKPOINT_INTERVAL_MIN
    checkpoint_interval_max: float = CHECKPOINT_INTERVAL_MAX
    checkpoint_make_room: bool = False
    save_shards: SaveShards = "auto"
    memory_checkpoint: MemoryCheckpoint = "off"
    memory_limit: int | None = None
    checkpoint_keep: int = CHECKPOINT_KEEP
    checkpoint_keep_every: float | None = None
    checkpoint_keep_best: tuple[Literal["min", "max"], str] | None = None
    on_nan: OnNan | None = None
    loss_spike: float | None = None
    replay: float | None = None
    on_replay_difference: OnReplayDifference = "warn"
    standby: Standby | None = None
    microbatches: int = 1
    between_failures_s: float | None = None
    waits_for: DaemonIdentity | None = None
    member: Member | None = None
    generation: int | None = None
    leaves_with: DaemonIdentity | None = None
    protocol: int = PROTOCOL

    @property
    def retention(self) -> RetentionPolicy:
        """Which of its checkpoints stay."""
        return RetentionPolicy(self.checkpoint_keep, self.checkpoint_keep_every, self.checkpoint_keep_best)

    def to_environment(self) -> dict[str, str]:
        """The variable that `from_environment` reads back to the same value."""
        return {VARIABLE: encode_record(self)}


def reads_together(save_shards: SaveShards, workers: int) -> bool:
    """Whether the workers of a gang read a checkpoint together, unless it is small or one of them can't; so that each
    proves what it restores, and the daemons of all but the chief need not."""
    return save_shards == "always" or (save_shards == "auto" and workers >= LEAST_READING_TOGETHER)


def from_environment(environment: Mapping[str, str]) -> Launch:
    """The settings in the environment; the defaults if there are none. Raises LaunchError."""
    text = environment.get(VARIABLE)
    if text is None:
        initial = environment.get(INITIAL_CHECKPOINT)
        return Launch(initial_checkpoint=Path(initial) if initial else None)
    try:
        body = parse_object(text)
        if (protocol := body.get("protocol", PROTOCOL)) != PROTOCOL:
            raise LaunchError(
                f"the daemon speaks protocol {protocol}, this worker {PROTOCOL}; "
                f"install the daemon's stepkeeper version in the job's environment"
            )
        launch = decode_record(body, Launch, "its record")
    except ProtocolError as error:
        raise LaunchError(f"{VARIABLE} can't be read: {error}; it is described in docs/control-pipe.md") from error
    if (launch.control is not None and launch.control.attempt == STANDBY) != (launch.waits_for is not None):
        raise LaunchError(f"{VARIABLE} can't be used: attempt {STANDBY} and waits_for belong together")
    return launch


def state_home(environment: Mapping[str, str]) -> Path | None:
    """Where programs keep their state by the XDG base directory specification; None if nothing says where."""
    state, home = environment.get("XDG_STATE_HOME", ""), environment.get("HOME", "")
    if state.startswith("/"):
        return Path(state)
    return Path(home, ".local", "state") if home.startswith("/") else None


def mirror_url(environment: Mapping[str, str]) -> str | None:
    """Where a worker without a daemon finds its run's mirror; None if nothing says so."""
    return environment.get(MIRROR) or None


def proof_folder(environment: Mapping[str, str]) -> Path | None:
    """The folder of the proof that this process takes part in; None for ordinary training."""
    return Path(text) if (text := environment.get(PROOF)) else None


def without_launch_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` less the launch variables, for children of a worker and for programs that are not jobs."""
    return {key: value for key, value in environment.items() if key not in (VARIABLE, INITIAL_CHECKPOINT, MIRROR)}
