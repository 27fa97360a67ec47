"""A [program:NAME] section to the models of its processes."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from supervisor.config import relations
from supervisor.config import supervisor_keys as foreign
from supervisor.config.keys.daemon import SupervisordConfig
from supervisor.config.keys.job import JobConfig
from supervisor.config.keys.program import JOB_STARTRETRIES, GroupConfig, ListenerConfig, ProcessesConfig, ProgramConfig
from supervisor.config.schema.check import SectionReader
from supervisor.config.schema.values import TRUE
from supervisor.config.schema.values import environment as parse_environment
from supervisor.ini.placeholders import program_placeholders
from supervisor.ini.problems import nearest_word

MAX_NAME_BYTES = 100  # it becomes part of file names, which end at 255
RESERVED = ("all", "supervisord")
"""Words that mean something else to supervisorctl."""

_NAME = re.compile(r"[^\s:/*.-][^\s:/*]*")


JOB_KEYS, PROGRAM_KEYS = frozenset(JobConfig.ini_keys()), frozenset(ProgramConfig.ini_keys())
PROCESSES_KEYS = frozenset(ProcessesConfig.ini_keys())
LISTENER_KEYS = frozenset(ListenerConfig.ini_keys())
LISTENER_PRIORITY = -1  # Supervisor's: before all programs, so that they hear of them


@dataclass(frozen=True, slots=True)
class ProgramContext:
    """What a program's section needs to know of the rest. `names`: what its values may use, less the program's own."""

    daemon: SupervisordConfig
    placeholders: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """The group that a program's processes are in, and when it starts; None: when the program says.

    `is_pool`: its processes are event listeners.
    """

    name: str
    priority: int | None = None
    is_pool: bool = False


@dataclass(frozen=True, slots=True)
class _ProcessIdentity:
    """Which of a program's processes it is: its number, of how many."""

    program: str
    group: ProcessGroup
    number: int
    numprocs: int


def build_processes(
    name: str, group: ProcessGroup, checked: SectionReader, around: ProgramContext
) -> list[ProgramConfig]:
    """The program's processes, or none after complaints."""
    check_name(name, checked)
    special = LISTENER_KEYS if group.is_pool else JOB_KEYS
    checked.report_unknown_keys(set(special | PROGRAM_KEYS | PROCESSES_KEYS), foreign.PROGRAM)
    relations.check_key_combinations(checked, set(JOB_KEYS))
    counted = PROCESSES_KEYS - {"process_name"}
    checked.expand_values(set(counted), around.placeholders)
    processes = checked.build_model(ProcessesConfig, {})
    if processes is None:
        processes = ProcessesConfig.build({})  # one of them tells what else is wrong
    built: dict[str, ProgramConfig] = {}
    for number in range(processes.numprocs_start, processes.numprocs_start + processes.numprocs):
        one = SectionReader(checked.ini, checked.problems, bad_keys=checked.bad_keys)
        process = _build_process(_ProcessIdentity(name, group, number, processes.numprocs), one, around)
        if process is None or checked.bad_keys:
            return []
        if process.name in built:
            text = f"numprocs is {processes.numprocs} but process_name gives {process.process!r:.120} more than once"
            checked.add_problem(f"{text}; write process_name = %(program_name)s_%(process_num)02d", "numprocs")
            return []
        built[process.name] = process
    return list(built.values())


def _build_process(place: _ProcessIdentity, checked: SectionReader, around: ProgramContext) -> ProgramConfig | None:
    _expand(place, checked, around)
    process = checked.texts.pop("process_name", place.program)
    if process != place.program:
        check_name(process, checked, "process_name")
    is_listener = place.group.is_pool
    job = None if is_listener else _job(checked)
    computed = _computed(place, process, checked, around, job)
    if is_listener:
        computed["listener"] = _listener(checked)
    program = checked.build_model(ProgramConfig, computed)
    if program is None or checked.bad_keys:
        if "checkpoint_dir" in checked and not is_listener:
            computed["job"] = checked.build_partial(JobConfig, {})
        relations.check_program(checked.build_partial(ProgramConfig, computed), checked)
        return None
    relations.check_program(program, checked)
    priority = place.group.priority
    return replace(program, group_priority=program.priority if priority is None else priority)


def check_name(name: str, checked: SectionReader, key: str | None = None) -> None:
    """Complains about a name that supervisorctl, or a file's name, can't have."""
    if name in RESERVED:
        checked.add_problem(f"can't be called {name!r}: supervisorctl uses that word; choose another name", key)
    elif not _NAME.fullmatch(name) or not name.isprintable() or len(name.encode(errors="replace")) > MAX_NAME_BYTES:
        checked.add_problem(
            f"has the name {name!r:.120}; a name has no space, ':', '/' or '*', does not begin with '.' or '-', and "
            f"is 1 to {MAX_NAME_BYTES} bytes long",
            key,
        )


def _expand(place: _ProcessIdentity, checked: SectionReader, around: ProgramContext) -> None:
    special = LISTENER_KEYS if place.group.is_pool else JOB_KEYS
    keys = set(special | PROGRAM_KEYS | {"process_name"})
    known = {
        **around.placeholders,
        **program_placeholders(place.program, place.group.name, place.number, place.numprocs),
    }
    checked.expand_values({"environment"}, known)
    try:
        # what the program sets is there for its own %(ENV_X)s
        own = parse_environment(checked.texts.get("environment", ""))
    except ValueError:
        own = {}  # the model's own check of the key complains
    checked.expand_values(keys - {"environment"}, known | {f"ENV_{key}": value for key, value in own.items()})


def _job(checked: SectionReader) -> JobConfig | None:
    if "checkpoint_dir" in checked:
        return checked.build_model(JobConfig, {})
    for key in sorted(JOB_KEYS & checked.ini.entries.keys()):
        remedy = "add checkpoint_dir = FOLDER" if key == "entrypoint" else "add checkpoint_dir = FOLDER, or take it out"
        checked.add_problem(f"{key} is for training jobs, and without checkpoint_dir this is none; {remedy}", key)
    return None


def _listener(checked: SectionReader) -> ListenerConfig | None:
    if checked.texts.get("redirect_stderr", "").lower() in TRUE:
        text = "redirect_stderr is true, and standard output is how an event listener answers; take the line out"
        checked.add_problem(text, "redirect_stderr")
    return checked.build_model(ListenerConfig, {})


def _computed(
    place: _ProcessIdentity, process: str, checked: SectionReader, around: ProgramContext, job: JobConfig | None
) -> dict[str, Any]:
    """What the file leaves out, or leaves to us."""
    group, is_alone = place.group.name, place.group.name == process
    computed: dict[str, Any] = {
        "name": process if is_alone else f"{group}:{process}",
        "group": group,
        "process": process,
        "group_priority": 0,
        "job": job,
    }
    if "command" not in checked and ("entrypoint" in checked or "checkpoint_dir" in checked):
        entrypoint = (job and job.entrypoint) or "missing"  # its absence has been complained about
        computed["command"] = (job.python if job else "python", "-m", "worker", entrypoint)
    if job is not None:
        computed["startretries"] = JOB_STARTRETRIES
    if "stopasgroup" in checked.texts:
        computed["killasgroup"] = checked.texts["stopasgroup"]
    log_name = process if is_alone else f"{group}.{process}"  # a colon in a file's name reads as a host's to scp
    for channel in ("stdout", "stderr"):
        key = f"{channel}_logfile"
        if (word := checked.texts.get(key, "").lower()) in ("syslog", "journal"):
            checked.texts[key] = "NONE"
            checked.texts[f"{channel}_{word}"] = "true"
        if checked.texts.get(key) == os.devnull:
            checked.texts[key] = "NONE"  # there is nothing to rotate, and nothing to read
        if checked.texts.get(key, "AUTO").upper() == "AUTO":
            checked.texts.pop(key, None)
            is_answers = place.group.is_pool and channel == "stdout"
            computed[key] = None if is_answers else around.daemon.childlogdir / f"{log_name}-{channel}.log"
    if checked.texts.get("redirect_stderr", "").lower() in TRUE:
        computed["stderr_logfile"] = None
    return computed


def build_groups(
    sections: Mapping[str, SectionReader], programs: Iterable[str], known: Mapping[str, str]
) -> dict[str, ProcessGroup]:
    """The group of every program that is in one, by the program's name; complains about the rest."""
    members: dict[str, ProcessGroup] = {}
    programs = set(programs)
    for name, checked in sections.items():
        check_name(name, checked)
        keys = set(GroupConfig.ini_keys())
        checked.report_unknown_keys(keys, {})
        checked.expand_values(keys, known)
        group = checked.build_model(GroupConfig, {})
        if name in programs and (group is None or name not in group.programs):
            checked.add_problem(f"has the name of [program:{name}], which is a group of its own; choose another name")
        for program in group.programs if group else ():
            if program not in programs:
                meant = nearest_word(program, programs)
                hint = f"did you mean {meant!r}?" if meant else f"add a section [program:{program:.80}]"
                checked.add_problem(
                    f"programs names {program!r:.80}, which there is no section for; {hint}", "programs"
                )
            elif program in members:
                text = f"programs names {program!r}, which is in [group:{members[program].name}] already"
                checked.add_problem(f"{text}; take it out of one of them", "programs")
            else:
                members[program] = ProcessGroup(name, group.priority if group else None)
    return members
