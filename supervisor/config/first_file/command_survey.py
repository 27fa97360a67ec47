"""Does a job's command lead to the package `worker`? As far as the texts of its scripts tell; nothing is run."""

import ast
import contextlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from supervisor.config.first_file.script_survey import (
    FRAMEWORKS,
    ScriptError,
    ScriptKind,
    ScriptSurvey,
    expressions,
    imported_names,
    read_script,
    survey_script,
    texts_of,
)
from supervisor.protocol.wire import launch

MAX_MODULES = 50  # of a script's own, that are looked into: a package of more is no longer a script


class WorkerUse(StrEnum):
    """Whether a job's command leads to the package `worker`, as far as the texts of its scripts tell."""

    YES = "yes"
    NO = "no"  # the script, all that it imports from beside it included, and it imports nothing that might
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class CommandSurvey:
    """What was found out of a job's command. `script`: the one that was looked at, None if there is none to see.

    `may_use_it`: what it imports that might use the package, where it does not itself.
    """

    use: WorkerUse
    script: Path | None = None
    may_use_it: tuple[str, ...] = ()


def survey_command(command: Sequence[str], folder: Path) -> CommandSurvey:
    """Whether what `command` runs in `folder` uses the package `worker`. Raises ScriptError if a script can't be read.

    Only of `python SCRIPT` can it be told that it does not: a shell, a launcher or a module may do anything.
    """
    scripts = [path for path in _scripts_in(command, folder) if path.is_file()]
    if not scripts:
        return CommandSurvey(WorkerUse.UNKNOWN)
    foreign: set[str] = set()
    for script in scripts:
        use, names = _use_of(script)
        if use is WorkerUse.YES:
            return CommandSurvey(use, script)
        foreign |= names
    is_plain = "python" in Path(command[0]).name and not any(word in ("-m", "-c") for word in command[1:])
    use = WorkerUse.NO if is_plain and not foreign else WorkerUse.UNKNOWN
    return CommandSurvey(use, scripts[0], tuple(sorted(foreign)))


def survey_with_modules(script: Path, arguments: Sequence[str] = ()) -> ScriptSurvey:
    """What a script is; of one that does not train itself, how the first module does that it imports from beside it.

    Raises ScriptError if the script itself can't be read.
    """
    survey = survey_script(script, arguments)
    if survey.kind is not ScriptKind.PLAIN or not survey.is_python:
        return survey
    seen, waiting = {script}, [script]
    while waiting and len(seen) <= MAX_MODULES:
        path = waiting.pop(0)
        with contextlib.suppress(ScriptError):
            inner = survey if path == script else survey_script(path)
            if inner.kind not in (ScriptKind.PLAIN, ScriptKind.TRAINING):
                return replace(survey, kind=inner.kind, directory=inner.directory, uses_strategy=inner.uses_strategy)
        tree = _parsed(path)
        for module in () if tree is None else _imported_modules(tree):
            beside = [file for file in _files_of(script.parent, module) if file.is_file() and file not in seen]
            waiting += beside
            seen |= {*beside}
    return survey


def _scripts_in(command: Sequence[str], folder: Path) -> Iterator[Path]:
    """The scripts that a command names, also inside an argument, as in bash -c "python train.py"."""
    for argument in command[1:]:
        try:
            words = shlex.split(argument) if " " in argument else [argument]
        except ValueError:
            words = []
        yield from (folder / word for word in words if word.endswith(".py"))
    if "-m" in command:
        module = "".join(command[command.index("-m") + 1 :][:1]).replace(".", "/")
        yield from (folder / f"{module}.py", folder / module / "__main__.py")


def _use_of(script: Path) -> tuple[WorkerUse, set[str]]:
    """Looks at a script and at the modules beside it that it imports; and what else it imports that might use it."""
    if survey_script(script).kind is not ScriptKind.PLAIN:
        return WorkerUse.YES, set()
    foreign, seen, waiting = set[str](), {script}, [script]
    while waiting and len(seen) <= MAX_MODULES:
        tree = _parsed(waiting.pop())
        if tree is None:
            continue
        _, packages = imported_names(tree)
        if "worker" in packages or any(text == launch.VARIABLE for text in texts_of(expressions(tree))):
            return WorkerUse.YES, set()
        for module in _imported_modules(tree):
            beside = [file for file in _files_of(script.parent, module) if file.is_file()]
            waiting += [path for path in beside if path not in seen]
            seen |= {*beside}
            package = module.partition(".")[0]
            is_own = beside or (script.parent / package).is_dir() or (script.parent / f"{package}.py").is_file()
            if not is_own and package not in (*sys.stdlib_module_names, *FRAMEWORKS):
                foreign.add(package)
        foreign |= packages & _RUNS_OTHERS
    return WorkerUse.UNKNOWN if foreign or waiting else WorkerUse.NO, foreign


_RUNS_OTHERS = frozenset({"importlib", "runpy", "subprocess", "multiprocessing"})
"""Of the standard library: what may run a script that this one does not import."""


def _parsed(path: Path) -> ast.Module | None:
    try:
        return ast.parse(read_script(path), str(path))
    except (ScriptError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _imported_modules(tree: ast.Module) -> Iterator[str]:
    """The full names of all modules that are imported, wherever in the text; relative ones without their dots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            yield from ([base] if base else [])
            yield from (f"{base}.{name.name}".lstrip(".") for name in node.names if node.level or base)


def _files_of(folder: Path, module: str) -> list[Path]:
    """The files beside a script that importing a module would run; of a package also those above the module."""
    parts = module.split(".")
    packages = [folder.joinpath(*parts[: count + 1], "__init__.py") for count in range(len(parts))]
    return [folder.joinpath(*parts).with_suffix(".py"), *packages]
