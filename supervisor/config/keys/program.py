"""One process of a section [program:NAME] or [eventlistener:NAME]."""

import signal
from typing import Annotated

from supervisor.config.keys.groups import ListenerConfig
from supervisor.config.keys.hooks import HookKeys
from supervisor.config.keys.job import JobConfig
from supervisor.config.schema import quantities, texts, words
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
from supervisor.core.program.facts import AutoRestart

JOB_STARTRETRIES = 10
_BOOLEANS = dict.fromkeys(words.TRUE, "true") | dict.fromkeys(words.FALSE, "false")


@section_model
class ProgramConfig(HookKeys):
    """One program: a command that is kept running, or a training job."""

    name: str = internal("`GROUP:PROCESS`, or `PROCESS` where the two are the same.")
    group: str = internal("The group it is in; a program that no [group:NAME] lists makes one of its own.")
    process: str = internal("What it is called inside its group.")
    group_priority: int = internal("When its group starts.")
    section: str = internal("The section that it comes from, without brackets.")
    job: JobConfig | None = internal("Set if the program is a training job.", None)
    listener: ListenerConfig | None = internal("Set if the program is an event listener; its group is its pool.", None)
    command: Annotated[tuple[str, ...], parsed_by(texts.command)] = required(
        "Program and arguments, split as a shell would; no shell runs.",
        shown="required, except for a job with an entrypoint",
    )
    directory: FilePath | None = key(None, "Folder in which the program starts.", shown="none: the daemon's")
    environment: Variables = key(
        {},
        'Variables for this program, which win over those of [supervisord]: `KEY="value",OTHER="value"`.',
        shown="empty",
    )
    environment_file: Annotated[str, parsed_by(str)] | None = key(
        None,
        "File of further variables, over which `environment` wins. With `-` before the path, it may be missing. "
        "`update` applies its changes. A root daemon demands that it is as safe from other users as the "
        "configuration.",
        shown="none",
    )
    user: User | None = key(
        None,
        "User (name or number) as whom it runs; needs a root daemon. HOME, USER and LOGNAME become that user's, "
        "unless set to something other than root's. The rest of the environment stays the daemon's, as in Supervisor:"
        " keep secrets out of it.",
        shown="the daemon's",
    )  # fmt: skip
    umask: Mode | None = key(
        None,
        "File mode bits removed from the files that the program creates.",
        shown="the daemon's",
    )
    limit_nofile: CountLimit | None = key(
        None,
        "How many files it may have open (soft and hard limit), or `unlimited`.",
        shown="the daemon's at its start",
    )
    limit_nproc: CountLimit | None = key(
        None, "How many processes its user may have when it starts another one, or `unlimited`.", shown="the daemon's"
    )
    limit_core: SizeLimit | None = key(
        None, "Largest size of a core file, 0 for none, or `unlimited`.", shown="the daemon's"
    )
    limit_memlock: SizeLimit | None = key(
        None,
        "Memory that it may lock, as InfiniBand needs, or `unlimited`.",
        shown="the daemon's",
    )
    memory_limit: PositiveBytes | None = key(
        None,
        "Resident memory of it and its child processes, checked every second. Above it, a job flushes, and the "
        'program is restarted (see "Limits and health").',
        shown="none",
    )
    cpu_limit: Cores | None = key(
        None,
        "CPU cores that it and its child processes may use, such as 1.5; only enforced where the daemon has control "
        "groups of its own.",
        shown="none",
    )
    healthcheck_command: Annotated[tuple[str, ...], parsed_by(texts.command)] | None = key(
        None,
        "Command that exits with 0 if the program is healthy, run while it is RUNNING, as its `user` and in its "
        "`directory`, with the daemon's umask. It has the variables that `user`, `environment` and `environment_file` "
        "give the program, SUPERVISOR_ENABLED, SUPERVISOR_PROCESS_NAME, SUPERVISOR_GROUP_NAME, SUPERVISOR_SERVER_URL "
        "and SUPERVISOR_PROGRAM_PID, but none that are its process's alone, such as NOTIFY_SOCKET. An unhealthy "
        "program is restarted; a job flushes first. A command that can't be run says nothing; `status` names it.",
        shown="none",
    )
    healthcheck_interval: Timeout = key(30.0, "Seconds between two checks, and before the first one.")
    healthcheck_timeout: Timeout = key(30.0, "Seconds after which a check counts as failed.")
    healthcheck_retries: Positive = key(3, "How many checks in a row must fail.")
    oom_score_adjust: Annotated[int, parsed_by(lambda text: quantities.whole_number(text, 0, 1000))] | None = key(
        None,
        "How much the kernel prefers to kill it when memory runs out, from 0 to 1000, never less than the daemon.",
        shown="0, or the daemon's if that is higher",
    )
    priority: Priority = key(
        999,
        "Lower numbers start first and stop last: with the daemon, with `all`, and in groups. depends_on waits, "
        "and wins.",
    )
    depends_on: Annotated[tuple[str, ...], parsed_by(texts.name_list)] = key(
        (),
        "Programs or groups, separated by commas, that must be ready before this one starts: a job trains, a plain "
        "program has been up for its startsecs or has reported it (notify), or either is done. Only a start waits, "
        "not a restart.",
        shown="none",
    )
    depends_on_end: Annotated[tuple[str, ...], parsed_by(texts.name_list)] = key(
        (),
        "Programs or groups that must have ended by themselves, with whatever exit status, before this one starts.",
        shown="none",
    )
    autostart: Boolean = key(
        True,
        "Whether to start it with the daemon. The last `start` or `stop` wins.",
    )
    autorestart: Annotated[AutoRestart, parsed_by(words.one_of(AutoRestart, _BOOLEANS))] = key(
        AutoRestart.UNEXPECTED,
        "Whether to start it again when it ends by itself: true, false, or unexpected: if the exit code is not in "
        "exitcodes (a job: if it did not report that training is done).",
    )
    exitcodes: Annotated[frozenset[int], parsed_by(quantities.exit_codes)] = key(
        frozenset({0}), "Expected exit codes, separated by commas.", shown="0"
    )
    startsecs: Seconds = key(
        1.0,
        "Seconds that it must stay up to count as started; an earlier end is a failed start. A job has started when it "
        "trains.",
    )
    notify: Boolean = key(
        False,
        "Whether the program itself reports when it is ready, instead of startsecs: by READY=1 to NOTIFY_SOCKET, as "
        "with systemd (docs/programs.md).",
    )
    notify_timeout: Timeout = key(
        90.0,
        "Seconds within which it must report that; else the start has failed.",
    )
    startretries: Count = key(
        3,  # more for a job: what it needs (a disk, a driver) may take longer to come back
        "How many failed starts in a row are retried; of a job, how many restarts in a row without a new checkpoint.",
        shown=f"3; {JOB_STARTRETRIES} for a job",
    )
    stopsignal: Annotated[signal.Signals, parsed_by(texts.signal_of)] = key(
        signal.SIGTERM, "Signal that asks it to exit; a job flushes first.", shown="TERM"
    )
    stop_command: Annotated[tuple[str, ...], parsed_by(texts.command)] | None = key(
        None,
        "Command that asks it to exit, run like healthcheck_command; the signal follows if it still runs. Both share "
        "stopwaitsecs.",
        shown="none: the signal only",
    )
    stopwaitsecs: Seconds = key(10.0, "Seconds from the stop signal to SIGKILL.")
    stopasgroup: Boolean = key(False, "Whether the stop signal goes to the whole process group.")
    killasgroup: Boolean = key(
        False,
        "Whether SIGKILL goes to the whole process group. All processes of a job are killed in any case.",
        shown="value of stopasgroup",
    )
    redirect_stderr: Boolean = key(False, "Whether standard error goes into the log of standard output.")
    stdout_logfile: LogPath = key(
        None,
        "Log of standard output: a path, AUTO, or NONE for no log. `syslog` or `journal` sends the output only there.",
        shown="AUTO: `NAME-stdout.log` in childlogdir",
    )
    stdout_logfile_maxbytes: Bytes = key(LOG_MAXBYTES, "Size at which the log is rotated; 0 means never.")
    stdout_logfile_backups: Count = key(LOG_BACKUPS, "How many rotated logs are kept.")
    stdout_logfile_compress: Boolean = key(
        False,
        "Whether rotated logs are compressed (docs/logs.md).",
    )
    stdout_line_prefix: Annotated[str, parsed_by(texts.line_prefix)] = key(
        "",
        "Text before each line in stdout_logfile, such as `{time} {program}:`; also with `{attempt}` and "
        "`{channel}` (docs/logs.md).",
        shown="none",
    )
    stdout_syslog: Boolean = key(
        False,
        "Whether the lines also go to the system's log (facility user, level info).",
    )
    stdout_journal: Boolean = key(
        False,
        "Whether the lines also go to systemd's journal (docs/logs.md).",
    )
    stdout_events_enabled: Boolean = key(
        False,
        "Whether event listeners of PROCESS_LOG_STDOUT get what it prints there while a daemon runs.",
    )
    stdout_capture_maxbytes: Bytes = key(
        0,
        "How many bytes, the last ones, of what it prints between `<!--XSUPERVISOR:BEGIN-->` and "
        "`<!--XSUPERVISOR:END-->` go to event listeners of PROCESS_COMMUNICATION_STDOUT instead of the log. 0: none.",
        shown="0",
    )
    stderr_logfile: LogPath = key(
        None,
        "Log of standard error, like stdout_logfile; none if redirect_stderr is true.",
        shown="AUTO: `NAME-stderr.log` in childlogdir",
    )
    stderr_logfile_maxbytes: Bytes = key(LOG_MAXBYTES, "Size in bytes at which the log is rotated; 0 means never.")
    stderr_logfile_backups: Count = key(LOG_BACKUPS, "How many rotated logs are kept.")
    stderr_logfile_compress: Boolean = key(False, "Whether rotated logs of standard error are compressed.")
    stderr_line_prefix: Annotated[str, parsed_by(texts.line_prefix)] = key(
        "", "Like stdout_line_prefix, for standard error.", shown="none"
    )
    stderr_syslog: Boolean = key(False, "Like stdout_syslog, for standard error.")
    stderr_journal: Boolean = key(False, "Like stdout_journal, for standard error.")
    stderr_events_enabled: Boolean = key(False, "Like stdout_events_enabled, for standard error.")
    stderr_capture_maxbytes: Bytes = key(0, "Like stdout_capture_maxbytes, for standard error.", shown="0")

    @property
    def needed_names(self) -> tuple[str, ...]:
        """The programs or groups that it waits for before it starts."""
        return self.depends_on + self.depends_on_end

    @property
    def ends_all_processes(self) -> bool:
        """Whether all that it started is ended with it, or what it left behind stays, as in Supervisor."""
        return self.job is not None or self.killasgroup
