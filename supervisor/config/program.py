"""Turns the sections [program:NAME] and [eventlistener:NAME] into the models of their processes."""

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from supervisor.config import dependent_startup, program_relations, supervisor_keys
from supervisor.config.environment_file import read_environment_file
from supervisor.config.groups import ProcessGroup, check_name
from supervisor.config.keys.daemon import SupervisordConfig
from supervisor.config.keys.groups import ListenerConfig, ProcessesConfig
from supervisor.config.keys.job import JobConfig
from supervisor.config.keys.program import JOB_STARTRETRIES, ProgramConfig
from supervisor.config.schema.check import SectionReader
from supervisor.config.schema.quantities import MAX_COUNT
from supervisor.config.schema.texts import absolute_path
from supervisor.config.schema.texts import environment as parse_environment
from supervisor.config.schema.words import FALSE, TRUE
from supervisor.ini.ownership import problems_of_ownership
from supervisor.ini.placeholders import program_placeholders

JOB_KEYS, PROGRAM_KEYS = frozenset(JobConfig.ini_keys()), frozenset(ProgramConfig.ini_keys())
PROCESSES_KEYS = frozenset(ProcessesConfig.ini_keys())
LISTENER_KEYS = frozenset(ListenerConfig.ini_keys())
NO_COMMAND = ("",)
EMPTY_COMMAND = "command is empty, so it can't be started; write the program to run"
NO_BYTES = ("0", "0b", "0kb", "0mb", "0gb")
LISTENER_PRIORITY = -1  # as in Supervisor: before all programs, so that listeners get the events of their starts


@dataclass(frozen=True, slots=True)
class ProgramContext:
    """What a program's section takes from the rest of the file. `placeholders`: those that every section may use;
    `environment`: the daemon's; `groups`: by program, those of [group:NAME]."""

    daemon: SupervisordConfig
    placeholders: Mapping[str, str]
    environment: Mapping[str, str]
    groups: Mapping[str, ProcessGroup]


@dataclass(frozen=True, slots=True)
class _ProcessIdentity:
    """One of the processes of a program: number `number` of `numprocs`."""

    program: str
    group: ProcessGroup
    number: int
    numprocs: int


def build_processes(
    name: str, group: ProcessGroup, reader: SectionReader, context: ProgramContext
) -> list[ProgramConfig]:
    """The processes of a section; none if it has problems, which are added to the reader's."""
    check_name(name, reader)
    special = LISTENER_KEYS if group.is_pool else JOB_KEYS
    elsewhere = {"[supervisord]": supervisor_keys.SUPERVISORS["supervisord"]}
    known = special | PROGRAM_KEYS | PROCESSES_KEYS | dependent_startup.KEYS
    reader.report_unknown_keys(set(known), supervisor_keys.PROGRAM, elsewhere)
    program_relations.check_key_combinations(reader, set(JOB_KEYS))
    counted = PROCESSES_KEYS - {"process_name"}
    reader.expand_values(set(counted), context.placeholders)
    processes = reader.build_model(ProcessesConfig, {})
    if processes is None:
        processes = ProcessesConfig.build({})  # one process is enough to find the other problems
    if processes.numprocs == 0:
        reader.add_remark("numprocs is 0, so nothing of this section runs", "numprocs")
    built: dict[str, ProgramConfig] = {}
    for number in range(processes.numprocs_start, processes.numprocs_start + processes.numprocs):
        one = SectionReader(reader.ini, reader.problems, reader.remarks, bad_keys=reader.bad_keys)
        process = _build_process(_ProcessIdentity(name, group, number, processes.numprocs), one, context)
        if process is None or reader.bad_keys:
            return []
        if process.name in built:
            same = f"process_name is {process.process!r:.120} for more than one of them"
            text = f"numprocs is {processes.numprocs} but {same}"
            reader.add_problem(f"{text}; write process_name = %(program_name)s_%(process_num)02d", "numprocs")
            return []
        built[process.name] = process
    return list(built.values())


def _build_process(place: _ProcessIdentity, reader: SectionReader, context: ProgramContext) -> ProgramConfig | None:
    from_file = _expand(place, reader, context)
    dependent_startup.translate_keys(reader, {name: group.name for name, group in context.groups.items()})
    process = reader.texts.pop("process_name", place.program)
    if process != place.program:
        check_name(process, reader, "process_name")
    is_listener = place.group.is_pool
    job = None if is_listener else _job(reader)
    computed = _computed(place, process, reader, context, job)
    if from_file:
        with contextlib.suppress(ValueError):  # reported when the model is built
            computed["environment"] = from_file | parse_environment(reader.texts.get("environment", ""))
            reader.texts.pop("environment", None)
    if is_listener:
        computed["listener"] = _listener(reader)
    program = reader.build_model(ProgramConfig, computed)
    if program is None or reader.bad_keys:
        if "checkpoint_dir" in reader and not is_listener:
            computed["job"] = reader.build_partial(JobConfig, {})
        program_relations.check_program(reader.build_partial(ProgramConfig, computed), reader)
        return None
    program_relations.check_program(program, reader)
    priority = place.group.priority
    return replace(program, group_priority=program.priority if priority is None else priority)


def _expand(place: _ProcessIdentity, reader: SectionReader, context: ProgramContext) -> dict[str, str]:
    """Fills the placeholders of all keys; gives the variables of the environment file."""
    special = LISTENER_KEYS if place.group.is_pool else JOB_KEYS
    keys = set(special | PROGRAM_KEYS | dependent_startup.KEYS | {"process_name"})
    known = {
        **context.placeholders,
        **program_placeholders(place.program, place.group.name, place.number, place.numprocs),
    }
    reader.expand_values({"environment", "environment_file"}, known)
    from_file = _read_environment_file(reader, context)
    try:
        # variables that the program sets can be used as %(ENV_X)s in its own section
        own = parse_environment(reader.texts.get("environment", ""))
    except ValueError:
        own = {}  # reported when the model is built
    own = from_file | own
    set_before = {"environment", "environment_file"}
    reader.expand_values(keys - set_before, known | {f"ENV_{key}": value for key, value in own.items()})
    return from_file


def _read_environment_file(reader: SectionReader, context: ProgramContext) -> dict[str, str]:
    """The variables of the file that a section names; its problems are added to the reader's."""
    text, key = reader.texts.get("environment_file", ""), "environment_file"
    if not text:
        return {}
    try:
        path = Path(absolute_path(text.removeprefix("-"), str(reader.ini.entries[key].folder)))
        if text.startswith("-") and not path.exists():
            return {}
        if wrong := problems_of_ownership([path], [], context.environment):
            raise ValueError(f"is refused: {wrong[0].text}")
        return read_environment_file(path)
    except (ValueError, OSError) as error:
        reader.add_problem(f"{key} {error}", key)
        return {}


def _job(reader: SectionReader) -> JobConfig | None:
    if "checkpoint_dir" in reader:
        return reader.build_model(JobConfig, {})
    for key in sorted(JOB_KEYS & reader.ini.entries.keys()):
        remedy = "add checkpoint_dir = FOLDER" + ("" if key == "entrypoint" else ", or delete the line")
        reader.add_problem(f"{key} is for training jobs, and without checkpoint_dir this is not one; {remedy}", key)
    return None


def _listener(reader: SectionReader) -> ListenerConfig | None:
    if reader.texts.get("redirect_stderr", "").lower() in TRUE:
        text = "redirect_stderr is true, but an event listener answers on its standard output; delete the line"
        reader.add_problem(text, "redirect_stderr")
    for key, asks_for_nothing in (("stdout_events_enabled", FALSE), ("stdout_capture_maxbytes", NO_BYTES)):
        if reader.texts.get(key, "0").lower() not in asks_for_nothing:
            del reader.texts[key]
            reader.add_remark(f"{key} has no effect for event listeners, which answer on standard output", key)
    listener = reader.build_model(ListenerConfig, {})
    if listener is not None and listener.has_foreign_handler:
        loads_none = "and the daemon loads no code of others: what this listener answers is dropped"
        text = f"result_handler is {listener.result_handler:.80}, {loads_none}"
        if any(event.startswith("PROCESS_LOG") for event in listener.events):
            text += "; if it is to be printed, set stdout_logfile = /dev/stdout in the programs instead"
        reader.add_remark(text, "result_handler")
    return listener


def _computed(
    place: _ProcessIdentity, process: str, reader: SectionReader, context: ProgramContext, job: JobConfig | None
) -> dict[str, Any]:
    """Values of keys that the file leaves out, and of fields that are not keys."""
    group, is_alone = place.group.name, place.group.name == process
    computed: dict[str, Any] = {
        "name": process if is_alone else f"{group}:{process}",
        "group": group,
        "process": process,
        "group_priority": 0,
        "section": reader.ini.name,
        "job": job,
    }
    if "command" not in reader and ("entrypoint" in reader or "checkpoint_dir" in reader):
        entrypoint = (job and job.entrypoint) or "missing"  # reported by check_key_combinations
        computed["command"] = (job.python if job else "python", "-m", "worker", entrypoint)
    if job is not None:
        computed["startretries"] = JOB_STARTRETRIES
    elif reader.texts.get("command") == "" and "checkpoint_dir" not in reader:
        del reader.texts["command"]
        computed["command"] = NO_COMMAND  # as in Supervisor, only this program can't be used, not the file
        reader.add_remark(EMPTY_COMMAND, "command")
    _limit_retries(reader)
    _read_empty_paths(reader)
    if "stopasgroup" in reader.texts:
        computed["killasgroup"] = reader.texts["stopasgroup"]
    log_name = process if is_alone else f"{group}.{process}"  # scp would take what is before a colon for a host
    for channel in ("stdout", "stderr"):
        key = f"{channel}_logfile"
        if (word := reader.texts.get(key, "").lower()) in ("syslog", "journal"):
            reader.texts[key] = "NONE"
            reader.texts[f"{channel}_{word}"] = "true"
        if reader.texts.get(key) == os.devnull or word == "off":
            reader.texts[key] = "NONE"  # the null device can be neither rotated nor read; `off` is Supervisor's word
        if reader.texts.get(key, "AUTO").upper() == "AUTO":
            reader.texts.pop(key, None)
            is_answers = place.group.is_pool and channel == "stdout"
            computed[key] = None if is_answers else context.daemon.childlogdir / f"{log_name}-{channel}.log"
    if reader.texts.get("redirect_stderr", "").lower() in TRUE:
        computed["stderr_logfile"] = None
    return computed


def _limit_retries(reader: SectionReader) -> None:
    """Accepts every whole number of retries, as Supervisor does."""
    text = reader.texts.get("startretries", "")
    if not re.fullmatch(r"-?[0-9]{1,1000}", text) or 0 <= (number := int(text)) <= MAX_COUNT:
        return
    same = "0, in Supervisor too" if number < 0 else f"{MAX_COUNT}: with the pauses between them, for years"
    reader.add_remark(f"startretries is {text:.20}, which is the same as {same}", "startretries")
    reader.texts["startretries"] = str(max(0, min(number, MAX_COUNT)))


def _read_empty_paths(reader: SectionReader) -> None:
    """A path that is left empty, as by a template, is none in Supervisor."""
    for key in ("stdout_logfile", "stderr_logfile"):
        if reader.texts.get(key) == "":
            reader.texts[key] = "NONE"
            reader.add_remark(f"{key} is empty, which is the same as NONE, in Supervisor too", key)
    if reader.texts.get("directory") == "":
        del reader.texts["directory"]
        reader.add_remark("directory is empty, which is the same as no such line, in Supervisor too", "directory")
