"""What must hold between keys: each one may be right and the set of them still wrong."""

import contextlib
import ipaddress
import os
import pwd
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path

from supervisor.config.keys.daemon import SupervisordConfig
from supervisor.config.keys.program import ProgramConfig
from supervisor.config.keys.server import InetServerConfig, UnixServerConfig
from supervisor.config.schema.check import SectionReader, UnknownValue
from supervisor.core.fleet import dependencies
from supervisor.ini.problems import nearest_word
from supervisor.protocol import layout

DAEMON_STREAMS = frozenset({Path("/dev/stdout"), Path("/dev/stderr"), Path("/dev/fd/1"), Path("/dev/fd/2")})

_PROTOCOL_KEYS = frozenset({"stdout_events_enabled", "stdout_capture_maxbytes"})

MAX_ADDRESS_BYTES = 107
"""What sun_path holds besides its NUL (unix(7))."""

MAX_SOCKET_PATH_BYTES = 98
"""sun_path holds 107 bytes and a NUL (unix(7)); the name it is bound under before the rename is up to 9 longer."""


def check_key_combinations(checked: SectionReader, job_keys: set[str]) -> None:
    """Which keys of a program exclude or need each other."""
    is_job = "checkpoint_dir" in checked
    if "command" in checked and "entrypoint" in checked:
        text = "has a command and an entrypoint; take one of them out (the entrypoint stands for a command)"
        checked.add_problem(text, "entrypoint")
    elif is_job and not ("command" in checked or "entrypoint" in checked):
        checked.add_problem("has neither a command nor an entrypoint; add one of them", "checkpoint_dir")
    elif "command" not in checked and not (job_keys & checked.ini.entries.keys()):
        checked.add_problem("has no 'command', which it needs", "command")
    for key in ("healthcheck_interval", "healthcheck_timeout", "healthcheck_retries"):
        if key in checked and "healthcheck_command" not in checked:
            checked.add_problem(f"{key} has no effect without healthcheck_command; add it, or take the line out", key)
    if "notify_timeout" in checked and "notify" not in checked:
        checked.add_problem(
            "notify_timeout has no effect without notify = true; add it, or take the line out", "notify_timeout"
        )
    if is_job and "notify" in checked:
        checked.add_problem("notify is for plain programs: a job is ready when it trains; take the line out", "notify")
    if is_job and "python" in checked and "command" in checked:
        checked.add_problem("python goes with an entrypoint only; write the interpreter into the command", "python")


def check_program(program: ProgramConfig, checked: SectionReader) -> None:
    """Values of one program that contradict each other, or this host; what is Unknown contradicts nothing."""
    for check in (_check_kill, _check_ready, _check_strategy, _check_workers, _check_standby, _check_interval):
        with contextlib.suppress(UnknownValue):
            check(program, checked)
    for channel in ("stdout", "stderr"):
        with contextlib.suppress(UnknownValue):
            _check_log(program, checked, channel)


def _check_kill(program: ProgramConfig, checked: SectionReader) -> None:
    if program.stopasgroup and not program.killasgroup:
        text = (
            "killasgroup is false but stopasgroup is true: processes that ignore the stop signal would be left behind; "
            "set killasgroup = true"
        )
        checked.add_problem(text, "killasgroup")


def _check_ready(program: ProgramConfig, checked: SectionReader) -> None:
    if program.listener is not None and program.notify:
        checked.add_problem(
            "notify is for programs: a listener is ready when it says READY; take the line out", "notify"
        )


def _check_standby(program: ProgramConfig, checked: SectionReader) -> None:
    job = program.job
    if job is None or job.standby not in ("warm", "hot"):
        return
    if job.standby == "hot" and job.entrypoint is None:
        text = (
            "standby is hot but the job has no entrypoint: only the ready-made loop can be traced ahead of time; use "
            "standby = warm, or an entrypoint"
        )
        checked.add_problem(text, "standby")
    if job.strategy in ("multiworker", "tpu"):
        checked.add_problem(
            f"standby can't be {job.standby} with strategy = {job.strategy}; take the line out", "standby"
        )


def _check_interval(program: ProgramConfig, checked: SectionReader) -> None:
    job = program.job
    if job is not None and job.checkpoint_interval_min > job.checkpoint_interval_max:
        text = (
            f"checkpoint_interval_min is {job.checkpoint_interval_min:g} s but checkpoint_interval_max "
            f"{job.checkpoint_interval_max:g} s; make the first the smaller one"
        )
        checked.add_problem(text, "checkpoint_interval_min")


def _check_strategy(program: ProgramConfig, checked: SectionReader) -> None:
    """Each way to train on several devices has its own number."""
    job = program.job
    if job is None:
        return
    if job.strategy == "one-device" and (job.replicas or 1) > 1:
        text = f"replicas is {job.replicas} but strategy is one-device; take one out, or use strategy = mirrored"
        checked.add_problem(text, "replicas")
    elif job.strategy in ("multiworker", "tpu") and job.replicas is not None:
        remedy = "say how many processes with workers" if job.strategy == "multiworker" else "the TPU has what it has"
        checked.add_problem(
            f"replicas has no meaning with strategy = {job.strategy}; take it out ({remedy})", "replicas"
        )


def _check_workers(program: ProgramConfig, checked: SectionReader) -> None:
    job = program.job
    if job is None or job.workers is None:
        return
    if job.strategy not in (None, "multiworker"):
        checked.add_problem(
            f"workers goes with strategy = multiworker, which is {job.strategy}; take one out", "workers"
        )
    if "TF_CONFIG" in program.environment:
        text = "workers starts processes on this host and TF_CONFIG names those of several; take one of them out"
        checked.add_problem(text, "workers")


def _check_log(program: ProgramConfig, checked: SectionReader, channel: str) -> None:
    key = f"{channel}_logfile"
    for log in (f"{channel}_{each}" for each in ("syslog", "journal", "events_enabled", "capture_maxbytes")):
        if getattr(program, log) and channel == "stderr" and program.redirect_stderr:
            checked.add_problem(f"{log} has no effect while redirect_stderr is true; take one of them out", log)
        elif getattr(program, log) and getattr(program, key) in DAEMON_STREAMS:
            text = f"{log} needs what the program prints, but {key} hands it the daemon's own output"
            checked.add_problem(f"{text}; write {key} = NONE, or take {log} out", log)
        elif getattr(program, log) and log in _PROTOCOL_KEYS and program.listener is not None:
            checked.add_problem(f"{log}: standard output is how an event listener answers; take the line out", log)
    file, size = getattr(program, key), getattr(program, f"{key}_maxbytes")
    if channel == "stderr" and program.redirect_stderr:
        if key in checked and checked.ini.entries[key].value.upper() not in ("AUTO", "NONE"):
            text = f"{key} has no effect while redirect_stderr is true; take one of them out"
            checked.add_problem(text, key)
    elif file is not None and file.is_relative_to("/dev") and size > 0:
        checked.add_problem(f"{key} is {file}, which can't be rotated; set {key}_maxbytes = 0", key)


def check_socket(server: UnixServerConfig, checked: SectionReader) -> None:
    """Whether the system can make such a socket."""
    length = len(os.fsencode(server.file))
    if length > MAX_SOCKET_PATH_BYTES:
        text = f"file is {length} bytes long, a socket's path at most {MAX_SOCKET_PATH_BYTES}; use a shorter one"
        checked.add_problem(f"{text}, such as /run/stepkeeper.sock", "file")
    if server.owner is not None and os.geteuid() != 0 and server.owner[0] != os.geteuid():
        checked.add_problem("chown gives the socket to another user, which only root can; take it out", "chown")


def check_address(server: InetServerConfig, checked: SectionReader) -> None:
    """Who reaches the address must know a password, but for this host's own users."""
    if server.username is None and not is_loopback(server.address[0]):
        text = "port can be reached from other hosts; set username and password, or listen on 127.0.0.1 only"
        checked.add_problem(text, "port")


def check_duplicate_address(
    server: UnixServerConfig | InetServerConfig,
    checked: SectionReader,
    others: Sequence[tuple[UnixServerConfig | InetServerConfig, str]],
) -> None:
    """No two sections have one address."""
    key = "file" if isinstance(server, UnixServerConfig) else "port"
    for other, name in others:
        if _where(server) == _where(other):
            checked.add_problem(f"{key} is that of [{name}] too; give it another, or delete one of the sections", key)


def _where(server: UnixServerConfig | InetServerConfig) -> object:
    return server.file if isinstance(server, UnixServerConfig) else server.address


def check_daemon(daemon: SupervisordConfig, checked: SectionReader) -> None:
    """Values of [supervisord] that leave nobody to hear of anything."""
    if daemon.silent and daemon.nodaemon and daemon.logfile is None and not daemon.log_to_syslog:
        checked.add_problem(
            "silent is true and logfile is NONE, so that nobody would be told; name a logfile", "silent"
        )


def check_login(server: UnixServerConfig | InetServerConfig, checked: SectionReader) -> None:
    """User name and password come together."""
    if (server.username is None) != (server.password is None):
        given, missing = ("username", "password") if server.password is None else ("password", "username")
        checked.add_problem(f"has a {given} and no {missing}; add one, or take the {given} out", given)


def is_loopback(host: str | None) -> bool:
    """Whether only this host's own users reach the address."""
    try:
        return host == "localhost" or (host is not None and ipaddress.ip_address(host).is_loopback)
    except ValueError:
        return False


def check_across_sections(
    daemon: SupervisordConfig,
    programs: Mapping[str, ProgramConfig],
    written: Mapping[str, SectionReader],
    sections: Iterable[str],
) -> None:
    """What must hold between sections. `sections`: the names of all, of those too that something is wrong with."""
    _check_users(daemon, programs, written)
    _check_shared_folders(programs, written)
    _check_dependencies(programs, written, {each.partition(":")[2] for each in sections})
    _check_notify_paths(daemon, programs, written)


def _check_notify_paths(
    daemon: SupervisordConfig, programs: Mapping[str, ProgramConfig], written: Mapping[str, SectionReader]
) -> None:
    for name, program in programs.items():
        length = len(os.fsencode(layout.attempt_folder(daemon.runtime_dir, name, 10**8) / layout.NOTIFY))
        if program.notify and length > MAX_ADDRESS_BYTES:
            text = (
                f"notify needs a socket in runtime_dir, whose path would come to {length} bytes, and "
                f"{MAX_ADDRESS_BYTES} are the most; set a shorter runtime_dir in [supervisord], such as /run/stepkeeper"
            )
            written[name].add_problem(text, "notify")


def _check_dependencies(
    programs: Mapping[str, ProgramConfig], written: Mapping[str, SectionReader], sections: Set[str]
) -> None:
    """What is needed must be there, and no program may wait for itself, be it round a corner."""
    groups = {name: program.group for name, program in programs.items()}
    wrong = sections - {*groups, *groups.values()}
    for name, program in programs.items():
        for needed in program.depends_on:
            if not dependencies.resolve_name(needed, groups) and needed.partition(":")[0] not in wrong:
                near = nearest_word(needed, {*groups, *groups.values()})
                hint = f"did you mean {near!r}?" if near else f"add a section [program:{needed:.80}]"
                text = f"depends_on names {needed!r:.80}, which is no program and no group; {hint}"
                written[name].add_problem(text, "depends_on")
    ring = dependencies.find_cycle(dependency_graph(programs))
    if ring is not None:
        text = f"depends_on leads back to where it begins: {' needs '.join(ring)}; take one of them out"
        written[ring[0]].add_problem(text, "depends_on")


def dependency_graph(programs: Mapping[str, ProgramConfig]) -> dict[str, frozenset[str]]:
    """By program: the programs that its depends_on means."""
    groups = {name: program.group for name, program in programs.items()}
    return {
        name: frozenset[str]().union(*(dependencies.resolve_name(each, groups) for each in program.depends_on))
        for name, program in programs.items()
    }


def _check_users(
    daemon: SupervisordConfig, programs: Mapping[str, ProgramConfig], written: Mapping[str, SectionReader]
) -> None:
    uid = os.geteuid() if daemon.user is None else _uid(daemon.user)
    if uid == 0:
        return
    who = f"uid {uid}" if daemon.user is None else f"{daemon.user} ([supervisord] user)"
    for name, program in programs.items():
        if program.user is not None and _uid(program.user) != uid:
            text = f"user is {program.user} but the daemon runs as {who}, and only root can start programs as others"
            written[name].add_problem(f"{text}; run supervisord as root, or take the line out", "user")


def _check_shared_folders(programs: Mapping[str, ProgramConfig], written: Mapping[str, SectionReader]) -> None:
    """Two jobs in one folder would restore and delete each other's checkpoints."""
    owners: dict[str, str] = {}
    for name, program in programs.items():
        if program.job is None:
            continue
        other = owners.setdefault(os.path.realpath(program.job.checkpoint_dir), name)
        if other != name:
            text = f"checkpoint_dir is {program.job.checkpoint_dir}, which is that of {other} too"
            how = ", with %(process_num)s in it" if program.group == programs[other].group else ""
            written[name].add_problem(f"{text}; give each job a folder of its own{how}", "checkpoint_dir")


def _uid(user: str) -> int:
    return int(user) if user.isdecimal() else pwd.getpwnam(user).pw_uid
