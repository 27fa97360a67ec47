"""The section [supervisord]: each key's default with its unit and reason."""

from typing import Annotated, Literal

from supervisor.config.keys.hooks import HookKeys
from supervisor.config.schema import values
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


@section_model
class SupervisordConfig(HookKeys):
    """The daemon itself. The section must be there, it may be empty."""

    state_dir: FilePath = required(
        "Folder for what must survive the daemon: the ledger (which programs should run, every attempt and how it "
        "ended) and the lock that excludes a second daemon. One backup or one volume holds it all.",
        shown="`.stepkeeper` beside the configuration file",
    )
    runtime_dir: FilePath = required(
        "Folder for the control pipes between the daemon and its workers; it may be on a tmpfs, as nothing in it is "
        "needed after a reboot.",
        shown="`run` in state_dir",
    )
    logfile: LogPath = key(
        None,
        "The daemon's own log; NONE for standard error only, `syslog` for the system's log. In the "
        "foreground it goes to standard error as well.",
        shown="`supervisord.log` in state_dir",
    )
    log_to_syslog: bool = internal("Whether logfile is `syslog`.", False)
    logfile_maxbytes: Bytes = key(
        LOG_MAXBYTES, "Size in bytes (KB, MB, GB) at which the log is rotated; 0 is never. As in Supervisor."
    )
    logfile_backups: Count = key(
        LOG_BACKUPS, "How many rotated logs stay, `.1` being the newest: at most 550 MB with the default size."
    )
    loglevel: Annotated[values.LogLevel, parsed_by(values.log_level)] = key(
        "info",
        "What the log holds: critical, error (a person must act), warn (recovered by itself), info (state changed), "
        "debug. Supervisor's trace and blather are the same as debug. Changes that clients ask for are logged "
        "at every level.",
    )
    log_format: Annotated[Literal["json", "supervisor"], parsed_by(values.log_format)] = key(
        "json",
        "What the log's lines are: `json`, or `supervisor`, the lines of Supervisor's that monitoring looks for "
        "(`exited: x (exit status 1; not expected)`).",
    )
    pidfile: LogPath = key(
        None, "Where the daemon writes its process id; NONE for nowhere.", shown="`supervisord.pid` in state_dir"
    )
    umask: Mode = key(
        0o022, "File mode bits, in octal, that are removed from the daemon's files: others may read, not write."
    )
    nodaemon: Boolean = key(
        False, "Whether to stay in the foreground, as systemd and containers want it. The same as the option -n."
    )
    silent: Boolean = key(
        False, "Whether to keep the log off standard error in the foreground. The same as the option -s."
    )
    minfds: Limit | None = key(
        None,
        "Minimum limit of open files for the daemon and each program: a lower limit is raised to it. If that is not "
        "possible, the daemon does not start. As in Supervisor, where it is 1024.",
        shown="none: what it was started with",
    )
    minprocs: Limit | None = key(
        None,
        "Minimum limit of processes of their user, raised in the same way. As in Supervisor, where it is 200.",
        shown="none: what it was started with",
    )
    identifier: str = key("supervisor", "The daemon's name for Supervisor's clients. As in Supervisor.")
    childlogdir: FilePath = required(
        "Folder for the logs of programs that don't name a file. Beside the ledger, as they are needed after a "
        "failure; Supervisor puts them into the temporary folder and deletes them at the next start.",
        shown="`log` in state_dir",
    )
    user: User | None = key(
        None,
        "User (name or number) that the daemon switches to at its start; needs root.",
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
        "Seconds that the command of a hook may take before it is killed. Hooks run one after the other, so a slow one "
        "delays the next, but never supervision.",
    )
    history_attempts: Positive = key(
        1000,
        "How many attempts of each program the ledger keeps, at least 20. A thousand take some hundred KB, and cover "
        "more than a year of a job that dies twice a day.",
    )
    history_days: Positive = key(
        365, "How many days the ledger keeps an attempt that is over; the last 20 of each program stay in any case."
    )
    notices: Annotated[Literal["auto"] | tuple[str, ...], parsed_by(values.notices)] = key(
        "auto",
        "Sources of notices that this host is going away: `auto` recognises the cloud it runs in without network "
        "requests; `off`; or names of sources, separated by commas.",
        shown="auto",
    )
    notice_dir: FilePath = required(
        "Folder that the source `file` watches: a file in it announces that this host is going away, or withdraws "
        "that.",
        shown="`notices` in state_dir",
    )
    notice_owners: Annotated[frozenset[int], parsed_by(values.users)] = key(
        frozenset(),
        "Users, separated by commas, whose files in notice_dir are trusted, in addition to root and the daemon's user.",
        shown="none",
    )
    azure_acknowledge: Boolean = key(
        False,
        "Whether to tell Azure not to wait any longer once everything is on the disk. Off by default, as Azure then "
        "takes the host at once.",
    )
    google_preemption_notice: Seconds = key(
        0.0,
        "Seconds of warning that a Google host was created with (120 if that was requested). Google's default.",
    )
    notice_grace: Seconds = key(
        60.0,
        "Seconds after the deadline of a notice for which jobs that stopped for it still wait. If the host is still "
        "there then, they start again. A minute, as providers may take a host somewhat late.",
    )
    engine: Annotated[values.Engine, parsed_by(values.engine)] = key(
        "alone",
        "Who owns the hosts and starts this daemon again: `alone`, nobody; `slurm`, a job of Slurm's (docs/slurm.md); "
        "`jobset`, a JobSet of Kubernetes (deploy/README.md). With these two the daemon stays in the foreground, and "
        "exits as with `exit_on = fatal, done`; under Slurm it keeps its state on the node's own disk. The same as the "
        "option --engine, which deploy/slurm/train.sbatch gives. Never guessed from Slurm's variables: a daemon that "
        "somebody starts by hand in an allocation is to run on.",
    )
    rendezvous_timeout: Timeout = key(
        120.0,
        "Seconds within which the daemons of all nodes have to meet before a gang starts; then the log "
        "names those that are missing. Long enough for a shared file system that is slow to read Python.",
    )
    exit_on: Annotated[tuple[str, ...], parsed_by(values.exit_on)] = key(
        (),
        "When the daemon exits by itself, for containers and batch systems: `fatal`, once a program has failed (the "
        "others flush and stop; exit status 70), `done`, once every program has ended by itself (exit status 0, or 70 "
        "if one ended unexpectedly), or both: `fatal, done`. Told to stop before everything is done, it then exits "
        "with 143. Off by default, as on a host the daemon keeps running.",
        shown="none",
    )
    power_timeout: Timeout = key(
        5.0,
        "Seconds that jobs have to flush after SIGPWR (power failure, or a container is stopped by its host); then the "
        "daemon exits. Short, as a power supply lasts no longer.",
    )
