"""The section [supervisord]: each key's default with its unit and reason."""

from pathlib import Path
from typing import Annotated, Literal

from supervisor.config.keys.hooks import HookKeys
from supervisor.config.schema import texts, words
from supervisor.config.schema.section import (
    LOG_BACKUPS,
    LOG_MAXBYTES,
    Boolean,
    Bytes,
    Count,
    FilePath,
    Limit,
    LogPath,
    Mode,
    Positive,
    Seconds,
    Timeout,
    User,
    Variables,
    internal,
    key,
    parsed_by,
    required,
    section_model,
)
from supervisor.core.fleet.exit_conditions import ExitOn

CHANGES_MAXBYTES = 10 << 20  # some 50,000 changes


@section_model
class SupervisordConfig(HookKeys):
    """The daemon itself. The section must be there, it may be empty."""

    state_dir: FilePath = required(
        "Folder for what must survive the daemon: the ledger, and the lock that keeps a second daemon out.",
        shown="`.stepkeeper` beside the configuration file",
    )
    runtime_dir: FilePath = required(
        "Folder for the control pipes to the workers; may be on a tmpfs. No two daemons share one.",
        shown="`run` in state_dir",
    )
    logfile: LogPath = key(
        None,
        "The daemon's own log; NONE for standard error only, `syslog` for the system's log. In the foreground also on"
        " standard error.",
        shown="`supervisord.log` in state_dir",
    )
    log_to_syslog: bool = internal("Whether logfile is `syslog`.", False)
    logfile_maxbytes: Bytes = key(LOG_MAXBYTES, "Size at which the log is rotated; 0 means never.")
    logfile_backups: Count = key(
        LOG_BACKUPS,
        "How many rotated logs are kept.",
    )
    changes_logfile: LogPath = key(
        None,
        "Log of the changes that clients requested (docs/logs.md). NONE for none.",
        shown="`changes.log` in state_dir",
    )
    changes_logfile_maxbytes: Bytes = key(CHANGES_MAXBYTES, "Size at which this log is rotated; 0 means never.")
    changes_logfile_backups: Count = key(LOG_BACKUPS, "How many of its backups are kept.")
    loglevel: words.LogLevel = key(
        "info",
        "Lowest level that is logged: critical, error (a person must act), warn (recovered by itself), info (a state "
        "changed) or debug (also Supervisor's trace and blather). Requested changes always are.",
    )
    log_format: words.LogFormat = key(
        "json",
        "Format of the log: `json`, or `supervisor`, for monitoring that looks for Supervisor's lines.",
    )
    pidfile: LogPath = key(
        None,
        "File for the daemon's process id; NONE for no file.",
        shown="`supervisord.pid` in state_dir",
    )
    umask: Mode = key(
        0o022,
        "File mode bits removed from the daemon's files. By default, others may read them.",
    )
    nodaemon: Boolean = key(False, "Whether to stay in the foreground, for systemd and containers (option -n).")
    silent: Boolean = key(False, "Whether to keep the log off standard error in the foreground (option -s).")
    minfds: Limit | None = key(
        None,
        "Minimum limit of open files for the daemon and each program. A lower one is raised, or the daemon does not "
        "start. Supervisor's default is 1024.",
        shown="none: the limit it was started with",
    )
    minprocs: Limit | None = key(
        None,
        "The same for processes of their user. Supervisor's default is 200.",
        shown="none: the limit it was started with",
    )
    identifier: str = key("supervisor", "Name of the daemon for Supervisor's clients.")
    childlogdir: FilePath = required(
        "Folder for logs of programs that name no file.",
        shown="`log` in state_dir",
    )
    user: User | None = key(
        None,
        "User (name or number) that the daemon becomes at its start; needs root.",
        shown="none",
    )
    directory: FilePath | None = key(
        None,
        "Folder in which the daemon works, and programs start by default.",
        shown="none: it stays where it is",
    )
    environment: Variables = key(
        {},
        'Variables for every program: `KEY="value",OTHER="value"`. They can be used as `%(ENV_KEY)s` in the file.',
        shown="empty",
    )
    hook_timeout: Timeout = key(
        30.0,
        "Seconds after which the command of a hook is killed.",
    )
    history_attempts: Positive = key(
        1000,
        "How many attempts of each program the ledger keeps, at least 20.",
    )
    history_days: Positive = key(
        365,
        "How many days the ledger keeps an attempt that is over, except for the last 20 of each program.",
    )
    notices: Annotated[Literal["auto"] | tuple[str, ...], parsed_by(words.notices)] = key(
        "auto",
        "Sources of notices that this host is going away (docs/notices.md): `auto` recognises the cloud; `off`; or "
        "names of sources, separated by commas.",
        shown="auto",
    )
    notice_dir: FilePath = required(
        "Folder that the source `file` watches.",
        shown="`notices` in state_dir",
    )
    notice_owners: Annotated[frozenset[int], parsed_by(texts.users)] = key(
        frozenset(),
        "Users, separated by commas, whose files in notice_dir are trusted, besides root and the daemon's user.",
        shown="none",
    )
    azure_acknowledge: Boolean = key(
        False,
        "Whether to tell Azure to go ahead once everything is on the disk; it then takes the host at once.",
    )
    google_preemption_notice: Seconds = key(
        0.0,
        "120 if the Google host was created with that many seconds of warning.",
    )
    notice_grace: Seconds = key(
        60.0,
        "Seconds that jobs which stopped for a notice wait after its deadline.",
    )
    on_gpu_fault: words.OnGpuFault = key(
        "act",
        "What to do about a GPU that fails (docs/gpus.md): `act`, or only `report`.",
    )
    engine: words.Engine = key(
        "alone",
        "Who owns the hosts and starts this daemon again: `alone`, nobody; `slurm`, a Slurm job (docs/slurm.md); "
        "`jobset`, a Kubernetes JobSet (deploy/README.md). With the last two, it stays in the foreground and exits as"
        " with `exit_on = fatal, done`. Also the option --engine.",
    )
    rendezvous_timeout: Timeout = key(
        120.0,
        "Seconds within which the daemons of a gang have to meet.",
    )
    exit_on: Annotated[tuple[ExitOn, ...], parsed_by(words.some_of(ExitOn))] = key(
        (),
        "When the daemon exits by itself: `fatal`, once a program has failed (the others flush and stop); `done`, once "
        "every program has ended by itself; or `fatal, done`.",
        shown="none",
    )
    power_timeout: Timeout = key(
        5.0,
        "Seconds that jobs have to flush after SIGPWR (a power failure, a container's host) before the daemon exits.",
    )


DAEMON_FILES = ("logfile", "changes_logfile", "pidfile")
LOG_PATHS = ("childlogdir", "logfile", "changes_logfile")
"""Of the paths in a state folder: those of logs."""


def paths_in(state_dir: Path) -> dict[str, Path]:
    """The folders and files of a daemon that configures none, by key."""
    return {
        "state_dir": state_dir,
        "runtime_dir": state_dir / "run",
        "childlogdir": state_dir / "log",
        "notice_dir": state_dir / "notices",
        "logfile": state_dir / "supervisord.log",
        "changes_logfile": state_dir / "changes.log",
        "pidfile": state_dir / "supervisord.pid",
    }
