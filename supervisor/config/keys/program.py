"""Programs and their groups: the sections [program:NAME] and [group:NAME]."""

import signal
from typing import Annotated

from supervisor.config.keys.hooks import HookKeys
from supervisor.config.keys.job import JobConfig
from supervisor.config.schema import values
from supervisor.config.schema.section import (
    LOG_BACKUPS,
    LOG_MAXBYTES,
    Boolean,
    Bytes,
    Cores,
    Count,
    CountLimit,
    FilePath,
    LogPath,
    Mode,
    Positive,
    PositiveBytes,
    Priority,
    Seconds,
    SectionModel,
    SizeLimit,
    Timeout,
    User,
    Variables,
    internal,
    key,
    parsed_by,
    required,
    section_model,
)
from supervisor.core.listeners.event_types import TYPES
from supervisor.ini.problems import nearest_word

JOB_STARTRETRIES = 10
BUFFER_SIZE = 1000  # Supervisor's 10 are lost while a listener starts; 1000 state changes are some 300 KB
DEFAULT_HANDLER = "supervisor.dispatchers:default_handler"
MAX_NUMPROCS = 10_000  # more are a typing error: each is a process, two pipes and two logs


@section_model
class ProcessesConfig(SectionModel):
    """How many processes a program's section stands for, and what they are called. More than one make a group."""

    numprocs: Annotated[int, parsed_by(lambda text: values.whole_number(text, 1, MAX_NUMPROCS))] = key(
        1, "How many processes, each with its own `%(process_num)s`; jobs need a checkpoint_dir each."
    )
    numprocs_start: Count = key(0, "The first one's number.")
    process_name: str = key(
        "%(program_name)s",
        "What each is called; with more than one it has to hold `%(process_num)s`, as in "
        "`%(program_name)s_%(process_num)02d`.",
    )


@section_model
class GroupConfig(SectionModel):
    """Programs that are started, stopped and shown together, as `GROUP:*`; each is then called `GROUP:NAME`."""

    programs: Annotated[tuple[str, ...], parsed_by(values.name_list)] = required(
        "Names of their sections, separated by commas. A program is in one group at most."
    )
    priority: Priority = key(
        999,
        "Groups with lower numbers start first and are told to stop last; inside, the programs' own priority counts.",
    )


def _events(text: str) -> tuple[str, ...]:
    """Names of event types, separated by commas."""
    found = tuple(name.upper() for name in values.name_list(text))
    for name in found:
        if name not in TYPES:
            meant = nearest_word(name, TYPES)
            raise ValueError(
                f"names {name!r:.80}, which is no event type; "
                + (f"did you mean {meant}?" if meant else "EVENT stands for all of them")
            )
    return found


def _handler(text: str) -> str:
    if text != DEFAULT_HANDLER:
        raise ValueError(
            f"is {text!r:.80}, and only {DEFAULT_HANDLER} is known: the daemon loads no code of others; have the "
            f"listener answer RESULT 2 and OK, or RESULT 4 and FAIL"
        )
    return text


@section_model
class ListenerConfig(SectionModel):
    """A program that is told what happens, on its standard input, and answers on its standard output."""

    events: Annotated[tuple[str, ...], parsed_by(_events)] = required(
        "Event types it is told of, separated by commas: EVENT is all, PROCESS_STATE every change of a program's state."
    )
    buffer_size: Positive = key(
        BUFFER_SIZE,
        "How many events wait at most, when its processes are busy or down. Then the oldest is dropped: the log and "
        "`status` say so.",
    )
    result_handler: Annotated[str, parsed_by(_handler)] = key(
        DEFAULT_HANDLER, "Accepted with this value only: an answer of OK is done with, any other is sent again."
    )


@section_model
class ProgramConfig(HookKeys):
    """One program: a command that is kept running, or a training job."""

    name: str = internal("`GROUP:PROCESS`, or `PROCESS` where the two are the same.")
    group: str = internal("The group it is in; a program that no [group:NAME] lists makes one of its own.")
    process: str = internal("What it is called inside its group.")
    group_priority: int = internal("When its group starts.")
    job: JobConfig | None = internal("Set if the program is a training job.", None)
    listener: ListenerConfig | None = internal("Set if the program is an event listener; its group is its pool.", None)
    command: Annotated[tuple[str, ...], parsed_by(values.command)] = required(
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
        "a job flushes, and the program starts again (cause memory-limit). What grows on meanwhile, by half of it, is "
        "killed. A tenth above it the kernel ends it, where the daemon has control groups of its own.",
        shown="none",
    )
    cpu_limit: Cores | None = key(
        None,
        "How many cores' time it and all it started may use, as 1.5. Held by the kernel, where the daemon has control "
        "groups of its own; elsewhere the log says that it is not held.",
        shown="none",
    )
    healthcheck_command: Annotated[tuple[str, ...], parsed_by(values.command)] | None = key(
        None,
        "Command that says, with exit status 0, that the program is well; run beside it as its user, in its directory, "
        "with SUPERVISOR_PROGRAM_PID. Asked while it is RUNNING. A job that is not well flushes; then it starts again "
        "(cause unhealthy).",
        shown="none",
    )
    healthcheck_interval: Timeout = key(30.0, "Seconds between two checks, and before the first. As Docker's.")
    healthcheck_timeout: Timeout = key(30.0, "Seconds a check may take; then it has failed. As Docker's.")
    healthcheck_retries: Positive = key(3, "How many checks in a row have to fail. As Docker's.")
    oom_score_adjust: Annotated[int, parsed_by(lambda text: values.whole_number(text, 0, 1000))] | None = key(
        None,
        "How much sooner than others the kernel kills it when memory runs out, 0 to 1000. Never below 0, so that a "
        "program goes before the daemon.",
        shown="0, or the daemon's if that is higher",
    )
    priority: Priority = key(
        999,
        "Lower numbers start first and are told to stop last: with the daemon, with all and with groups. It is only "
        "the order; what has to be ready before, or gone after, is for depends_on to say, which wins.",
    )
    depends_on: Annotated[tuple[str, ...], parsed_by(values.name_list)] = key(
        (),
        "Programs or groups, separated by commas, that have to be ready before it starts: a plain program has been up "
        "for its startsecs or said so (notify), a job trains, or either has done its work. It waits for them at its "
        "start only.",
        shown="none",
    )
    autostart: Boolean = key(
        True, "Whether to start it with the daemon. What you last told supervisorctl wins: a stopped program stays so."
    )
    autorestart: Annotated[values.AutoRestart, parsed_by(values.autorestart)] = key(
        "unexpected",
        "Whether to start it again when it ends by itself: true, false, or unexpected, which is when the exit code is "
        "not in exitcodes (for a job: when it did not say that training is done).",
    )
    exitcodes: Annotated[frozenset[int], parsed_by(values.exit_codes)] = key(
        frozenset({0}), "Exit codes, separated by commas, with which the program ends as it should.", shown="0"
    )
    startsecs: Seconds = key(
        1.0, "Seconds it must stay up to count as started; ending earlier is a failed start. A job has started when it "
        "trains."
    )  # fmt: skip
    notify: Boolean = key(
        False,
        "Whether it says itself when it is ready, in place of startsecs: by READY=1 to the socket that NOTIFY_SOCKET "
        "names, as services of systemd do; its STATUS= is shown. Jobs are ready when they train.",
    )
    notify_timeout: Timeout = key(
        90.0, "Seconds within which it has to say so; then it is stopped, which is a failed start. As systemd's."
    )
    startretries: Count = key(
        3,
        "How many failed starts in a row are tried again before it is given up. For a job: restarts in a row that "
        "brought no new checkpoint; more of them, as what they wait for (a disk, a driver) takes longer to come back.",
        shown=f"3; {JOB_STARTRETRIES} for a job",
    )
    stopsignal: Annotated[signal.Signals, parsed_by(values.stop_signal)] = key(
        signal.SIGTERM, "Signal that tells it to end, after the flush if it is a job.", shown="TERM"
    )
    stop_command: Annotated[tuple[str, ...], parsed_by(values.command)] | None = key(
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
        "Log of standard output: a path, NONE for no log, or AUTO; `syslog` or `journal` for no file but that.",
        shown="AUTO: `NAME-stdout.log` in childlogdir",
    )
    stdout_logfile_maxbytes: Bytes = key(
        LOG_MAXBYTES, "Size in bytes (KB, MB, GB) at which it is rotated; 0 is never. As in Supervisor."
    )
    stdout_logfile_backups: Count = key(LOG_BACKUPS, "How many rotated logs stay. As in Supervisor.")
    stdout_syslog: Boolean = key(
        False,
        "Whether the lines of standard output go to the system's log (/dev/log, facility user, level info), too, with "
        "the program as their identifier; without a file if stdout_logfile is NONE.",
    )
    stdout_journal: Boolean = key(
        False,
        "The same for systemd's journal, in fields: `journalctl PROGRAM=NAME`, ATTEMPT=N, STEPKEEPER_STREAM=stdout.",
    )
    stdout_events_enabled: Boolean = key(
        False,
        "Whether event listeners of PROCESS_LOG_STDOUT are told all that it prints there. While no daemon runs, nobody "
        "is.",
    )
    stdout_capture_maxbytes: Bytes = key(
        0,
        "What it prints between `<!--XSUPERVISOR:BEGIN-->` and `<!--XSUPERVISOR:END-->` goes to event listeners of "
        "PROCESS_COMMUNICATION_STDOUT instead of the log, the last so many bytes of it; 0: these marks mean nothing.",
        shown="0",
    )
    stderr_logfile: LogPath = key(
        None,
        "Log of standard error, as stdout_logfile; none if redirect_stderr is true.",
        shown="AUTO: `NAME-stderr.log` in childlogdir",
    )
    stderr_logfile_maxbytes: Bytes = key(LOG_MAXBYTES, "Size in bytes at which it is rotated; 0 is never.")
    stderr_logfile_backups: Count = key(LOG_BACKUPS, "How many rotated logs stay.")
    stderr_syslog: Boolean = key(False, "As stdout_syslog, for standard error.")
    stderr_journal: Boolean = key(False, "As stdout_journal, for standard error.")
    stderr_events_enabled: Boolean = key(False, "As stdout_events_enabled, for standard error.")
    stderr_capture_maxbytes: Bytes = key(0, "As stdout_capture_maxbytes, for standard error.", shown="0")
