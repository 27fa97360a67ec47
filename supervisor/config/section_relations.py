"""Checks of the sections of programs against each other, and against those of the daemon."""

import contextlib
import os
import pwd
import threading
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path

from supervisor.config import dependent_startup
from supervisor.config.keys.daemon import DAEMON_FILES, SupervisordConfig
from supervisor.config.keys.program import ProgramConfig
from supervisor.config.keys.server import UnixServerConfig
from supervisor.config.program_relations import DAEMON_STREAMS, EVENTS_OF_OUTPUT, no_output
from supervisor.config.schema.check import SectionReader
from supervisor.core.fleet import dependencies
from supervisor.core.listeners.event_types import is_kind_of
from supervisor.ini.problems import nearest_word
from supervisor.protocol import layout

MAX_ADDRESS_BYTES = 107
"""The size of sun_path without its NUL (unix(7))."""
LOOK_THREAD = "checkpoint_dir"
LOOK_LIMIT_S = 2.0  # a dead file system must not keep a daemon from starting, nor an update from answering


def check_across_sections(
    daemon: SupervisordConfig,
    programs: Mapping[str, ProgramConfig],
    written: Mapping[str, SectionReader],
    sections: Iterable[str],
    in_use: Mapping[Path, str],
) -> None:
    """Adds problems of sections with each other. `sections`: the names of all, also of those with problems.

    `in_use`: `files_in_use`.
    """
    _check_users(daemon, programs, written)
    _check_log_files(daemon, programs, written, in_use)
    _check_shared_folders(programs, written)
    _check_dependencies(programs, written, {section.partition(":")[2] for section in sections})
    _check_notify_paths(daemon, programs, written)
    _check_events_of_streams(programs, written)


def _check_events_of_streams(programs: Mapping[str, ProgramConfig], written: Mapping[str, SectionReader]) -> None:
    """Adds a problem where a listener waits for events that can't be, and a remark where nobody does.

    Most files with `stdout_events_enabled` beside `/dev/stdout` have no listener.
    """
    wanted = {name for config in programs.values() if config.listener for name in config.listener.events}
    for name, program in programs.items():
        for log, event in EVENTS_OF_OUTPUT.items():
            key = f"{log[:6]}_logfile"
            is_merged = log.startswith("stderr") and program.redirect_stderr
            if not getattr(program, log) or is_merged or getattr(program, key) not in DAEMON_STREAMS:
                continue
            if is_kind_of(event, wanted):
                text = f"{no_output(log, key)}, and a listener waits for {event}"
                written[name].add_problem(f"{text}; set {key} = NONE, or delete {log}", log)
            else:
                written[name].add_remark(f"{no_output(log, key)}, so there are no such events", log)


def files_in_use(
    daemon: SupervisordConfig, sockets: Iterable[UnixServerConfig], configuration: Iterable[Path]
) -> dict[Path, str]:
    """The files of the daemon that are no logs of programs, with what each is."""
    files = dict.fromkeys(configuration, "a configuration file")
    files |= {server.file: "the socket of [unix_http_server]" for server in sockets}
    return files | {
        file: f"{key} of [supervisord]" for key in DAEMON_FILES if (file := getattr(daemon, key)) is not None
    }


def _check_log_files(
    daemon: SupervisordConfig,
    programs: Mapping[str, ProgramConfig],
    written: Mapping[str, SectionReader],
    in_use: Mapping[Path, str],
) -> None:
    """Adds a problem for a log of a program that would be written into what the daemon itself needs, and rotated."""
    for name, program in programs.items():
        for key in ("stdout_logfile", "stderr_logfile"):
            file = getattr(program, key)
            if file is None or file in DAEMON_STREAMS or key not in written[name]:
                continue
            what = in_use.get(file)
            if what is None and (file.is_relative_to(daemon.runtime_dir) or file.is_relative_to(daemon.notice_dir)):
                what = "in a folder whose files the daemon reads"
            elif what is None and file.parent == daemon.state_dir and ".log" not in file.suffixes:
                what = f"in {daemon.state_dir}, where the daemon keeps its own"
            if what is not None:
                text = f"{key} is {file}, which is {what}; delete the line, and it is in {daemon.childlogdir}"
                written[name].add_problem(text, key)


def _check_notify_paths(
    daemon: SupervisordConfig, programs: Mapping[str, ProgramConfig], written: Mapping[str, SectionReader]
) -> None:
    for name, program in programs.items():
        length = len(os.fsencode(layout.attempt_folder(daemon.runtime_dir, name, 10**8) / layout.NOTIFY))
        if program.notify and length > MAX_ADDRESS_BYTES:
            text = (
                f"notify needs a socket in runtime_dir, whose path would be {length} bytes long, but the limit is "
                f"{MAX_ADDRESS_BYTES}; set a shorter runtime_dir in [supervisord], such as /run/stepkeeper"
            )
            written[name].add_problem(text, "notify")


def _check_dependencies(
    programs: Mapping[str, ProgramConfig], written: Mapping[str, SectionReader], sections: Set[str]
) -> None:
    """Adds problems for dependencies that don't exist, and for programs that depend on themselves."""
    groups = {name: program.group for name, program in programs.items()}
    wrong = sections - {*groups, *groups.values()}
    for name, program in programs.items():
        for key, needed in needed_by_key(program, written[name]):
            if not dependencies.resolve_name(needed, groups) and needed.partition(":")[0] not in wrong:
                near = nearest_word(needed, {*groups, *groups.values()})
                hint = f"did you mean {near!r}?" if near else f"add a section [program:{needed:.80}]"
                text = f"{key} names {needed!r:.80}, which is neither a program nor a group; {hint}"
                written[name].add_problem(text, key)
    ring = dependencies.find_cycle(dependency_graph(programs))
    if ring is not None:
        first = ring[0]
        key = next(key for key, _ in needed_by_key(programs[first], written[first]))
        text = f"{key} makes a cycle: {' needs '.join(ring)}; delete one of these dependencies"
        written[first].add_problem(text, key)


def needed_by_key(program: ProgramConfig, written: SectionReader) -> Iterator[tuple[str, str]]:
    """What it waits for before it starts, each with the key of the file that says so."""
    for key, names in (("depends_on", program.depends_on), ("depends_on_end", program.depends_on_end)):
        yield from ((dependent_startup.key_as_written(written.ini, key), name) for name in names)


def dependency_graph(programs: Mapping[str, ProgramConfig]) -> dict[str, frozenset[str]]:
    """By program: the programs that it depends on."""
    groups = {name: program.group for name, program in programs.items()}
    return {
        name: frozenset[str]().union(*(dependencies.resolve_name(needed, groups) for needed in program.needed_names))
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
            text = (
                f"user is {program.user} but the daemon runs as {who}, and only root can start programs as other users"
            )
            written[name].add_problem(f"{text}; run supervisord as root, or delete the line", "user")


def _check_shared_folders(programs: Mapping[str, ProgramConfig], written: Mapping[str, SectionReader]) -> None:
    """Two jobs in one folder would restore and delete each other's checkpoints."""
    owners: dict[str, str] = {}
    real_paths = _real_paths([program.job.checkpoint_dir for program in programs.values() if program.job is not None])
    for name, program in programs.items():
        if program.job is None:
            continue
        other = owners.setdefault(real_paths[program.job.checkpoint_dir], name)
        if other != name:
            text = f"checkpoint_dir is {program.job.checkpoint_dir}, which {other} uses too"
            how = ", with %(process_num)s in it" if program.group == programs[other].group else ""
            written[name].add_problem(f"{text}; set a separate folder for each job{how}", "checkpoint_dir")


def _real_paths(paths: Iterable[Path]) -> dict[Path, str]:
    """Where links lead; what the path says, where this user may not look or a file system does not answer."""
    real_paths = {path: str(path) for path in paths}

    def look() -> None:
        for path in tuple(real_paths):
            with contextlib.suppress(OSError):
                real_paths[path] = os.path.realpath(path)

    thread = threading.Thread(target=look, name=LOOK_THREAD, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the host has no thread to spare
        return real_paths
    thread.join(LOOK_LIMIT_S)
    return real_paths.copy()


def is_look_stuck() -> bool:
    """Whether a file system below a checkpoint_dir has not answered yet: execve(2) would wait for that thread."""
    return any(thread.name == LOOK_THREAD for thread in threading.enumerate())


def _uid(user: str) -> int:
    return int(user) if user.isdecimal() else pwd.getpwnam(user).pw_uid
