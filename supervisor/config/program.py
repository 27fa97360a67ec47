"""A [program:NAME] section to its model."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.config import relations
from supervisor.config import supervisor_keys as foreign
from supervisor.config.check import Checked
from supervisor.config.model import JOB_STARTRETRIES, JobConfig, ProgramConfig, SupervisordConfig
from supervisor.config.values import TRUE
from supervisor.config.values import environment as parse_environment
from supervisor.ini.expand import names, program_names

MAX_NAME_BYTES = 100  # it becomes part of file names, which end at 255
RESERVED = ("all", "supervisord")
"""Words that mean something else to supervisorctl."""

_NAME = re.compile(r"[^\s:/*.-][^\s:/*]*")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a program's section needs to know of the rest. `environment`: less the program's own."""

    daemon: SupervisordConfig
    environment: Mapping[str, str]


def build_program(name: str, checked: Checked, around: Surroundings) -> ProgramConfig | None:
    """The program, or None after complaints."""
    _check_name(name, checked)
    job_keys, program_keys = set(JobConfig.ini_keys()), set(ProgramConfig.ini_keys())
    checked.refuse_unknown(job_keys | program_keys, foreign.PROGRAM)
    _expand(name, checked, around, job_keys | program_keys)
    job = _job(checked, job_keys)
    relations.of_keys(checked, job_keys)
    computed = _computed(name, checked, around, job)
    program = checked.build(ProgramConfig, computed)
    if program is not None:
        relations.of_program(program, checked)
    return program if not checked.wrong else None


def _check_name(name: str, checked: Checked) -> None:
    if name in RESERVED:
        checked.complain(f"can't be called {name!r}: supervisorctl uses that word; choose another name")
    elif not _NAME.fullmatch(name) or not name.isprintable() or len(name.encode(errors="replace")) > MAX_NAME_BYTES:
        checked.complain(
            f"has the name {name!r:.120}; a name has no space, ':', '/' or '*', does not begin with '.' or '-', and "
            f"is 1 to {MAX_NAME_BYTES} bytes long"
        )


def _expand(name: str, checked: Checked, around: Surroundings, keys: set[str]) -> None:
    known = names(Path(), around.environment) | program_names(name)
    checked.expand({"environment"}, known)
    try:
        # what the program sets is there for its own %(ENV_X)s
        own = parse_environment(checked.texts.get("environment", ""))
    except ValueError:
        own = {}  # the model's own check of the key complains
    checked.expand(keys - {"environment"}, known | {f"ENV_{key}": value for key, value in own.items()})


def _job(checked: Checked, job_keys: set[str]) -> JobConfig | None:
    if "checkpoint_dir" in checked:
        return checked.build(JobConfig, {})
    for key in sorted(job_keys & checked.written.entries.keys()):
        remedy = "add checkpoint_dir = FOLDER" if key == "entrypoint" else "add checkpoint_dir = FOLDER, or take it out"
        checked.complain(f"{key} is for training jobs, and without checkpoint_dir this is none; {remedy}", key)
    return None


def _computed(name: str, checked: Checked, around: Surroundings, job: JobConfig | None) -> dict[str, Any]:
    """What the file leaves out, or leaves to us."""
    computed: dict[str, Any] = {"name": name, "job": job}
    if "command" not in checked and ("entrypoint" in checked or "checkpoint_dir" in checked):
        entrypoint = (job and job.entrypoint) or "missing"  # its absence has been complained about
        computed["command"] = (job.python if job else "python", "-m", "worker", entrypoint)
    if job is not None:
        computed["startretries"] = JOB_STARTRETRIES
    if "stopasgroup" in checked.texts:
        computed["killasgroup"] = checked.texts["stopasgroup"]
    for channel in ("stdout", "stderr"):
        key = f"{channel}_logfile"
        if checked.texts.get(key, "AUTO").upper() == "AUTO":
            checked.texts.pop(key, None)
            computed[key] = around.daemon.childlogdir / f"{name}-{channel}.log"
    if checked.texts.get("redirect_stderr", "").lower() in TRUE:
        computed["stderr_logfile"] = None
    return computed
