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
        "The daemon's own log; NONE for standard error only, `syslog` for the system's log. In the "
        "foreground it goes to standard error as well.",
        shown="`supervisord.log` in state_dir",
    )
    log_to_syslog: bool = internal("Whether logfile is `syslog`.", False)
    logfile_maxbytes: Bytes = key(
        LOG_MAXBYTES, "Size in bytes (KB, MB, GB) at which the log is rotated; 0 is never. As in Supervisor."
    )
    logfile_backups: Count = key(
        LOG_BACKUPS, "How many rotated logs stay, `.1` being the newest: 550 MB at most with the default size."
    )
    loglevel: Annotated[values.LogLevel, parsed_by(values.log_level)] = key(
        "info",
        "What the log holds: critical, error (a person must act), warn (recovered by itself), info (state changed), "
        "debug. Supervisor's trace and blather are the same as debug. What changes somebody asked for is in it at "
        "every level.",
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
        0o022, "File mode bits, in octal, that the daemon's files do not get: others may read, not write."
    )
    nodaemon: Boolean = key(
        False, "Whether to stay in the foreground, as systemd and containers want it. The same as the option -n."
    )
    silent: Boolean = key(
        False, "Whether the log goes to no standard error in the foreground. The same as the option -s."
    )
    minfds: Limit | None = key(
        None,
        "Open files that the daemon and each program must be allowed at least: what they were started with is raised "
        "to it. Where it can't be, the daemon does not start. As in Supervisor, where it is 1024.",
        shown="none: what it was started with",
    )
    minprocs: Limit | None = key(
        None,
        "The same for the processes that their user may have. As in Supervisor, where it is 200.",
        shown="none: what it was started with",
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
    notices: Annotated[Literal["auto"] | tuple[str, ...], parsed_by(values.notices)] = key(
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
    notice_owners: Annotated[frozenset[int], parsed_by(values.users)] = key(
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
    exit_on: Annotated[tuple[str, ...], parsed_by(values.exit_on)] = key(
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
