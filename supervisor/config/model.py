"""The configuration as the daemon uses it: one frozen model for each section, each default with its unit and reason.

The descriptions are the text of docs/configuration.md.
"""

import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError

from supervisor.config import values
from supervisor.config.check import explain
from supervisor.config.hooks import HookKeys
from supervisor.config.secret import Secret
from supervisor.config.section import INTERPRETER, OPTIONAL_PATH, PATH, Section, from_text, internal, key, required
from supervisor.ini.problems import ConfigError, Place, Problem
from supervisor.protocol.launch import Interval

Boolean = Annotated[bool, from_text(values.boolean)]
Bytes = Annotated[int, from_text(values.size_bytes)]
Count = Annotated[int, from_text(lambda text: values.whole(text, 0))]
Positive = Annotated[int, from_text(lambda text: values.whole(text, 1))]
Mode = Annotated[int, from_text(values.octal)]
Priority = Annotated[int, from_text(lambda text: values.whole(text, -1_000_000))]
CountLimit = Annotated[int, from_text(lambda text: values.limit(text, is_size=False))]
PositiveBytes = Annotated[int, from_text(values.positive_size)]
SizeLimit = Annotated[int, from_text(lambda text: values.limit(text, is_size=True))]
Seconds = Annotated[float, from_text(values.seconds)]
Timeout = Annotated[float, from_text(values.timeout)]
Variables = Annotated[dict[str, str], from_text(values.environment)]
User = Annotated[str, from_text(values.user)]
FilePath = Annotated[Path, PATH]
LogPath = Annotated[Path | None, OPTIONAL_PATH]

Password = Annotated[Secret, from_text(Secret)]

HOW_PASSWORDS_ARE_WRITTEN = (
    "The password, best as `supervisord --hash-password` prints it (salted scrypt); Supervisor's `{SHA}HEX` and clear "
    "text are accepted."
)
LOG_MAXBYTES = 50 << 20
LOG_BACKUPS = 10
JOB_STARTRETRIES = 10
MAX_NUMPROCS = 10_000  # more are a typing error: each is a process, two pipes and two logs


class SupervisordConfig(HookKeys):
    """The daemon itself. The section must be there, it may be empty."""

    state_dir: FilePath = required(
        "Folder for what must outlive the daemon: the ledger (what is wanted, every attempt and how it ended) and the "
        "lock that keeps a second daemon out. One folder, so that one backup or one volume holds it all.",
        shown="`.stepkeeper` beside the configuration file",
    )
    runtime_dir: FilePath = required(
        "Folder for the control pipes between the daemon and its workers; may be on a tmpfs, as nothing in it outlives "
        "a boot.",
        shown="`run` in state_dir",
    )
    logfile: LogPath = key(
        None,
        "The daemon's own log, as JSON lines; NONE for standard error only. In the foreground it goes there as well.",
        shown="`supervisord.log` in state_dir",
    )
    logfile_maxbytes: Bytes = key(
        LOG_MAXBYTES, "Size in bytes (KB, MB, GB) at which the log is rotated; 0 is never. As in Supervisor."
    )
    logfile_backups: Count = key(
        LOG_BACKUPS, "How many rotated logs stay, `.1` being the newest: 550 MB at most with the default size."
    )
    loglevel: Annotated[values.LogLevel, from_text(values.log_level)] = key(
        "info",
        "What the log holds: critical, error (a person must act), warn (recovered by itself), info (state changed), "
        "debug. Supervisor's trace and blather are the same as debug.",
    )
    pidfile: LogPath = key(
        None, "Where the daemon writes its process id; NONE for nowhere.", shown="`supervisord.pid` in state_dir"
    )
    umask: Mode = key(
        0o022, "File mode bits, in octal, that the daemon's files do not get: others may read, not write."
    )
    nodaemon: Boolean = key(
        False, "Whether to stay in the foreground, as systemd and containers want it. The same as the option -n."
    )
    identifier: str = key("supervisor", "The daemon's name in what it tells Supervisor's clients. Their default.")
    childlogdir: FilePath = required(
        "Folder for the logs of programs that don't name a file. Beside the ledger, as it is what one looks for after "
        "a failure; Supervisor puts them into the temporary folder and deletes them at the next start.",
        shown="`log` in state_dir",
    )
    user: User | None = key(
        None,
        "User (name or number) that the daemon becomes at its start; needs root. Without it, it stays who it is.",
        shown="none",
    )
    directory: FilePath | None = key(
        None, "Folder the daemon changes to at its start, and so the one programs start in.", shown="none: stay"
    )
    environment: Variables = key(
        {},
        'Variables for every program, as `KEY="value",OTHER="value"`; also for `%(ENV_KEY)s` everywhere in the file.',
        shown="empty",
    )
    hook_timeout: Timeout = key(
        30.0,
        "Seconds a hook's command may take before it is killed. They run one after the other, so a slow one delays the "
        "next, and never supervision.",
    )
    history_attempts: Positive = key(
        1000,
        "How many attempts of each program the ledger keeps, never fewer than 20. A thousand are some hundred KB, and "
        "years of a job that dies twice a day.",
    )
    history_days: Positive = key(
        365, "How many days the ledger keeps an attempt that is over; the last 20 of each program stay in any case."
    )
    notices: Annotated[Literal["auto"] | tuple[str, ...], from_text(values.notices)] = key(
        "auto",
        "Where notices that this host goes away come from: `auto` recognises the place it runs in, without asking the "
        "network; `off`; or sources by name, separated by commas.",
        shown="auto",
    )
    notice_dir: FilePath = required(
        "Folder that the source `file` watches: whoever may write there announces that this host goes away, or takes "
        "that back, with a file.",
        shown="`notices` in state_dir",
    )
    notice_owners: Annotated[frozenset[int], from_text(values.users)] = key(
        frozenset(),
        "Users, separated by commas, whose files in notice_dir count besides root's and the daemon's own.",
        shown="none",
    )
    azure_acknowledge: Boolean = key(
        False,
        "Whether Azure is told that it need not wait once all is on the disk. Off, as it then takes the host at once.",
    )
    google_preemption_notice: Seconds = key(
        0.0,
        "Seconds of warning that a Google host was created with (120, where that was asked for). As is their default.",
    )
    notice_grace: Seconds = key(
        60.0,
        "Seconds after a notice's deadline in which jobs that stopped for it still wait. Then the host has come to "
        "stay after all, and they start. A minute, as providers take a host some time after they said.",
    )
    exit_on: Annotated[tuple[str, ...], from_text(values.exit_on)] = key(
        (),
        "What ends the daemon by itself, for containers and batch systems: `fatal`, once a program is given up (the "
        "others flush and stop; exit status 70), `done`, once every program has ended by itself (exit status 0, or 70 "
        "if one did not end as it should), or both: `fatal, done`. Off, as a host's daemon waits for orders.",
        shown="none",
    )
    power_timeout: Timeout = key(
        5.0,
        "Seconds that jobs have from SIGPWR (power fails, or a container's host stops it) to be on the disk; then the "
        "daemon leaves. Short: that is what a power supply holds.",
    )


class UnixServerConfig(Section):
    """The socket that supervisorctl talks to. Without the section the daemon can only be told things by signals."""

    file: FilePath = required(
        "Path of the socket, at most 98 bytes long (the system's limit is 107, and while it is being set up the name "
        "is longer by 9)."
    )
    chmod: Mode = key(
        0o700, "The socket's mode, in octal: who may connect. Only the daemon's user by default, as who can give "
        "orders can run programs."
    )  # fmt: skip
    owner: Annotated[tuple[int, int], from_text(values.owner)] | None = key(
        None,
        "Owner of the socket, as `user` or `user:group`; needs root. The owner may change things, others whom the mode "
        "lets connect may only look.",
        shown="the daemon's user",
        alias="chown",
    )

    username: str | None = key(
        None,
        "User name a client must give. Set together with password; whoever knows both and can connect may change "
        "things.",
        shown="none: the kernel says who is at the other end",
    )
    password: Password | None = key(None, HOW_PASSWORDS_ARE_WRITTEN, shown="none")


class InetServerConfig(Section):
    """A TCP address that supervisorctl on other hosts can talk to. Off without the section; there is no TLS."""

    address: Annotated[tuple[str | None, int], from_text(values.address)] = Field(
        alias="port",
        description="`HOST:PORT`; `*:PORT` or `PORT` alone is every interface. On any but the loopback interface "
        "(127.0.0.1, ::1, localhost) username and password must be set.",
        json_schema_extra={"required": True},
    )
    username: str | None = key(
        None, "User name a client must give. Set together with password.", shown="none: everybody on this host"
    )
    password: Password | None = key(None, HOW_PASSWORDS_ARE_WRITTEN, shown="none")


class CtlConfig(Section):
    """What supervisorctl reads from the file; its options -s, -u and -p win over it."""

    serverurl: str | None = key(
        None,
        "Where the daemon listens: `unix:///path` or `http://host:port`.",
        shown="the file of [unix_http_server], else `http://localhost:9001` as in Supervisor",
    )
    username: str | None = key(None, "User name for a server that asks for one.", shown="none")
    password: str | None = key(None, "Password that goes with it, in clear text.", shown="none")
    prompt: str = key("supervisor", "What the interactive shell shows before `> `. As in Supervisor.")
    history_file: FilePath | None = key(
        None, "File that keeps the interactive shell's history between runs.", shown="none: it is not kept"
    )


class JobConfig(Section):
    """What makes a program a training job. The keys stand in the program's own section."""

    checkpoint_dir: FilePath = required(
        "Folder of the job's checkpoints, on a disk that outlives the host if training is to. Setting it makes the "
        "program a job: it is told to flush before it is stopped, and goes on from its newest whole checkpoint.",
        shown="none: the program is not a job",
    )
    initial_checkpoint: FilePath | None = key(
        None,
        "Checkpoint to begin from while checkpoint_dir has none of its own: a folder, of which the newest whole one is "
        "taken, or one checkpoint's prefix (`/srv/old/model.ckpt-1200`). Of tf.train.CheckpointManager, of TF1's Saver "
        "or of another job of stepkeeper. Nothing there is changed.",
        shown="none: what another program left in checkpoint_dir, else step 0",
    )
    export_dir: FilePath | None = key(
        None,
        "Folder for the trained model as a SavedModel: at the end of training it is written to `export_dir/STEP/`, as "
        "TensorFlow Serving wants it. An export is for serving; training goes on from checkpoints only.",
        shown="none: no export",
    )
    entrypoint: Annotated[str, from_text(values.entrypoint)] | None = key(
        None,
        "Function that trains, as `package.module:function`. Stands for `command = python -m worker "
        "package.module:function`.",
        shown="none: the command is used",
    )
    python: Annotated[str, INTERPRETER] = key(
        sys.executable,
        "Interpreter that runs the entrypoint: a path, or a name to search for. The job's environment may be another "
        "one than the daemon's.",
        shown="the daemon's interpreter",
    )
    strategy: Annotated[str, from_text(values.strategy)] | None = key(
        None, "What `worker.strategy()` gives: mirrored or one-device.", shown="what the script asks for"
    )
    replicas: Positive | None = key(
        None,
        "How many devices to use, 1 or more; where there is no GPU, as many logical CPU devices are made.",
        shown="every GPU, or one CPU device",
    )
    deterministic: Boolean = key(
        False,
        "Whether TensorFlow is to use deterministic operations only. Off, as some are slower and some are missing.",
    )
    strict: Boolean = key(
        False,
        "Whether training ends after its first step if the loop uses a variable that no checkpoint would hold. Off: "
        "then it is a warning, as such a variable may be one that never changes.",
    )
    checkpoint_interval: Annotated[Interval | None, from_text(values.interval)] = key(
        None,
        "How often to save: `500 steps`, `90 seconds`, `10 minutes`, or auto: the worker weighs what a save costs "
        "training against how often the job fails (Young and Daly), and `status` shows the choice. What a crash "
        "without warning can cost at most; a stop or a notice flushes anyway.",
        shown="what the script says, else auto",
    )
    checkpoint_interval_min: Timeout = key(
        30.0,
        "Seconds (or `1 minute`) that an automatic interval is never shorter than. Half a minute of lost work hardly "
        "matters, and the disk has other users; the first save comes this early, to be measured.",
    )
    checkpoint_interval_max: Timeout = key(
        1800.0,
        "Seconds (or `30 minutes`) that an automatic interval is never longer than: what a crash may cost however rare "
        "it was so far.",
    )
    checkpoint_make_room: Boolean = key(
        False,
        "Whether a save that finds the disk full may delete older checkpoints before their time, oldest first and "
        "never the newest whole one, and try again. Off, as checkpoint_keep then doesn't hold what it promises.",
    )
    checkpoint_keep: Positive = key(
        5, "How many of the newest checkpoints stay, 1 or more. More than one, as the newest may turn out damaged."
    )
    checkpoint_keep_every: Annotated[float, from_text(values.hours)] | None = key(
        None, "Besides, one checkpoint stays for every such length of time, such as `6 hours`.", shown="none"
    )
    checkpoint_keep_best: Annotated[tuple[str, str], from_text(values.best)] | None = key(
        None, "Besides, the one best by a metric stays: `min loss` or `max accuracy`.", shown="none"
    )
    startup_timeout: Timeout = key(
        600.0,
        "Seconds (or `10 minutes`) from start to the first step: import, restore, trace. Generous, as tracing a large "
        "model takes minutes; then the worker is killed and tried again.",
    )
    flush_timeout: Timeout = key(
        120.0,
        "Seconds (or `2 minutes`) a worker has to finish its step and write a checkpoint before it is told to end. "
        "Spot hosts give 30 to 120 s in all.",
    )
    on_notice: Annotated[Literal["stop", "train"], from_text(values.on_notice)] = key(
        "stop",
        "What the worker does once its last checkpoint before the host goes away is on the disk: `stop` leaves, and "
        "starts again if the host stays after all; `train` trains on until it is killed.",
    )
    notice_margin: Seconds = key(
        1.0,
        "Seconds between the moment its last checkpoint is expected on the disk and the one when the host may be gone. "
        "How long a save and a step take is measured; this is for what no measurement foresees.",
    )
    hang_timeout: Annotated[float | Literal["auto"] | None, from_text(values.learned_timeout)] = key(
        "auto",
        "Seconds (or `15 minutes`) without a step after which a worker counts as hung: the stacks of its threads are "
        "kept and it is killed and relaunched. `auto` learns the limit: four times the longest silence it came back "
        "from, at least hang_timeout_min (docs/hangs.md). `none` is off.",
    )
    hang_timeout_min: Timeout = key(
        600.0,
        "Seconds (or `10 minutes`) that `hang_timeout = auto` waits at least; half of it for the start-up, three times "
        "as long for an evaluation. Ten minutes, as PyTorch gives its collectives: ending a step that is only slow "
        "costs more than an idle machine.",
    )
    on_nan: Annotated[str, from_text(values.on_nan)] | None = key(
        None,
        "What follows when training diverges (docs/failures.md): `stop` fails the job, so that a person looks; "
        "`rollback` begins again from a checkpoint before it, three times at most without a new best one; `skip` does "
        "so and leaves the batches in question out; `off` doesn't look.",
        shown="what the script says, else stop",
    )
    loss_spike: Annotated[float | None, from_text(values.loss_spike)] = key(
        None,
        "From how many deviations above its median over the last 100 steps on a loss counts as diverged, for example "
        "20; off: only one that is not finite does, as what is far off depends on the job.",
        shown="off",
    )
    on_oom: Annotated[Literal["restart", "microbatch"], from_text(values.on_oom)] = key(
        "restart",
        "What follows when the job runs out of memory: `restart`, or `microbatch`, which divides each batch into twice "
        "as many parts than before and adds up their gradients. The second needs a script that does so "
        "(docs/failures.md).",
    )


class ProcessesConfig(Section):
    """How many processes a program's section stands for, and what they are called. More than one make a group."""

    numprocs: Annotated[int, from_text(lambda text: values.whole(text, 1, MAX_NUMPROCS))] = key(
        1, "How many processes, each with its own `%(process_num)s`; jobs need a checkpoint_dir each."
    )
    numprocs_start: Count = key(0, "The first one's number.")
    process_name: str = key(
        "%(program_name)s",
        "What each is called; with more than one it has to hold `%(process_num)s`, as in "
        "`%(program_name)s_%(process_num)02d`.",
    )


class GroupConfig(Section):
    """Programs that are started, stopped and shown together, as `GROUP:*`; each is then called `GROUP:NAME`."""

    programs: Annotated[tuple[str, ...], from_text(values.names)] = required(
        "Names of their sections, separated by commas. A program is in one group at most."
    )
    priority: Priority = key(999, "Groups with lower numbers start first; inside, the programs' own priority counts.")


class ProgramConfig(HookKeys):
    """One program: a command that is kept running, or a training job."""

    name: str = internal("`GROUP:PROCESS`, or `PROCESS` where the two are the same.")
    group: str = internal("The group it is in; a program that no [group:NAME] lists makes one of its own.")
    process: str = internal("What it is called inside its group.")
    group_priority: int = internal("When its group starts.")
    job: JobConfig | None = internal("Set if the program is a training job.", None)
    command: Annotated[tuple[str, ...], from_text(values.command)] = required(
        "Program and arguments, split as a shell would, but no shell runs it. Searched for in PATH if it has no slash. "
        "A job may have an entrypoint instead.",
        shown="required, but for a job with an entrypoint",
    )
    directory: FilePath | None = key(None, "Folder the program starts in.", shown="none: the daemon's")
    environment: Variables = key(
        {}, 'Variables for this program, over those of [supervisord]: `KEY="value",OTHER="value"`.', shown="empty"
    )
    user: User | None = key(
        None, "User (name or number) the program runs as; needs a daemon that is root. HOME and USER stay as they are.",
        shown="the daemon's",
    )  # fmt: skip
    umask: Mode | None = key(
        None, "File mode bits, in octal, that the program's files do not get.", shown="the daemon's"
    )
    limit_nofile: CountLimit | None = key(
        None, "How many files it may have open, soft and hard limit; `unlimited`.", shown="the daemon's at its start"
    )
    limit_nproc: CountLimit | None = key(
        None, "How many processes its user may have when it starts one more; `unlimited`.", shown="the daemon's"
    )
    limit_core: SizeLimit | None = key(
        None, "Size in bytes (KB, MB, GB) of a core file, 0 for none; `unlimited`.", shown="the daemon's"
    )
    limit_memlock: SizeLimit | None = key(
        None, "Bytes (KB, MB, GB) of memory it may lock, as InfiniBand needs; `unlimited`.", shown="the daemon's"
    )
    memory_limit: PositiveBytes | None = key(
        None,
        "Bytes (KB, MB, GB) of resident memory that it and all it started may hold. Looked at every second; above it, "
        "a job flushes, and the program starts again (cause memory-limit).",
        shown="none",
    )
    healthcheck_command: Annotated[tuple[str, ...], from_text(values.command)] | None = key(
        None,
        "Command that says, with exit status 0, that the program is well; run beside it as its user, in its directory, "
        "with SUPERVISOR_PROGRAM_PID. Asked while it is RUNNING. A job that is not well flushes; then it starts again "
        "(cause unhealthy).",
        shown="none",
    )
    healthcheck_interval: Timeout = key(30.0, "Seconds between two checks, and before the first. As Docker's.")
    healthcheck_timeout: Timeout = key(30.0, "Seconds a check may take; then it has failed. As Docker's.")
    healthcheck_retries: Positive = key(3, "How many checks in a row have to fail. As Docker's.")
    oom_score_adjust: Annotated[int, from_text(lambda text: values.whole(text, 0, 1000))] | None = key(
        None,
        "How much sooner than others the kernel kills it when memory runs out, 0 to 1000. Never below 0, so that a "
        "program goes before the daemon.",
        shown="0, or the daemon's if that is higher",
    )
    priority: Priority = key(999, "Lower numbers start first. As in Supervisor.")
    depends_on: Annotated[tuple[str, ...], from_text(values.names)] = key(
        (),
        "Programs or groups, separated by commas, that have to be ready before it starts: a plain program has been up "
        "for its startsecs, a job trains, or either has done its work. It waits for them at its start only.",
        shown="none",
    )
    autostart: Boolean = key(
        True, "Whether to start it with the daemon. What you last told supervisorctl wins: a stopped program stays so."
    )
    autorestart: Annotated[values.AutoRestart, from_text(values.autorestart)] = key(
        "unexpected",
        "Whether to start it again when it ends by itself: true, false, or unexpected, which is when the exit code is "
        "not in exitcodes (for a job: when it did not say that training is done).",
    )
    exitcodes: Annotated[frozenset[int], from_text(values.exit_codes)] = key(
        frozenset({0}), "Exit codes, separated by commas, with which the program ends as it should.", shown="0"
    )
    startsecs: Seconds = key(
        1.0, "Seconds it must stay up to count as started; ending earlier is a failed start. A job has started when it "
        "trains."
    )  # fmt: skip
    startretries: Count = key(
        3,
        "How many failed starts in a row are tried again before it is given up. For a job: restarts in a row that "
        "brought no new checkpoint; more of them, as what they wait for (a disk, a driver) takes longer to come back.",
        shown=f"3; {JOB_STARTRETRIES} for a job",
    )
    stopsignal: Annotated[signal.Signals, from_text(values.stop_signal)] = key(
        signal.SIGTERM, "Signal that tells it to end, after the flush if it is a job.", shown="TERM"
    )
    stop_command: Annotated[tuple[str, ...], from_text(values.command)] | None = key(
        None,
        "Command that tells it to end, run as its user, in its directory, with SUPERVISOR_PROGRAM_PID. When that has "
        "ended and the program has not, the signal follows. Both share stopwaitsecs.",
        shown="none: the signal only",
    )
    stopwaitsecs: Seconds = key(
        10.0, "Seconds from that signal to SIGKILL. For a job they begin when its flush is over. As in Supervisor."
    )
    stopasgroup: Boolean = key(False, "Whether the stop signal goes to the whole process group.")
    killasgroup: Boolean = key(
        False,
        "Whether SIGKILL goes to the whole process group. A job's processes are all killed in any case.",
        shown="value of stopasgroup",
    )
    redirect_stderr: Boolean = key(False, "Whether standard error goes into the log of standard output.")
    stdout_logfile: LogPath = key(
        None,
        "Log of standard output: a path, NONE for no log, or AUTO.",
        shown="AUTO: `NAME-stdout.log` in childlogdir",
    )
    stdout_logfile_maxbytes: Bytes = key(
        LOG_MAXBYTES, "Size in bytes (KB, MB, GB) at which it is rotated; 0 is never. As in Supervisor."
    )
    stdout_logfile_backups: Count = key(LOG_BACKUPS, "How many rotated logs stay. As in Supervisor.")
    stderr_logfile: LogPath = key(
        None,
        "Log of standard error, as stdout_logfile; none if redirect_stderr is true.",
        shown="AUTO: `NAME-stderr.log` in childlogdir",
    )
    stderr_logfile_maxbytes: Bytes = key(LOG_MAXBYTES, "Size in bytes at which it is rotated; 0 is never.")
    stderr_logfile_backups: Count = key(LOG_BACKUPS, "How many rotated logs stay.")


class Config(Section):
    """The whole configuration. `programs` is in the order of start: by priority of the group, then of the program."""

    path: Path = internal("The file it was read from.")
    supervisord: SupervisordConfig = internal("Section [supervisord].")
    unix_http_server: UnixServerConfig | None = internal("Section [unix_http_server].", None)
    inet_http_server: InetServerConfig | None = internal("Section [inet_http_server].", None)
    supervisorctl: CtlConfig = internal("Section [supervisorctl].", CtlConfig())
    programs: dict[str, ProgramConfig] = internal("Every process of the sections [program:NAME], by name.", {})

    def with_settings(self, settings: Mapping[str, Any]) -> Self:
        """The same, with what the command line says of the daemon instead; paths start from the present folder.

        Raises ConfigError.
        """
        given = {**dict(self.supervisord), **{key: _as_text(value) for key, value in settings.items()}}
        try:
            daemon = SupervisordConfig.model_validate(given)
        except ValidationError as error:
            place = Place(Path("command line"))
            raise ConfigError(Problem(place, f"--{text}") for _, text in explain(error)) from error
        return self.model_copy(update={"supervisord": daemon})


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, Path) else value
