"""What a script is, as far as its text tells: how it uses the package `worker`, and which arguments it needs.

Nothing is imported or run. `supervisord --init` writes its file by this, and `--check-config` looks at jobs.
"""

import ast
import os
import shlex
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from supervisor.protocol.wire import launch

MAX_MODULES = 50  # of a script's own, that are looked into: a package of more is no longer a script
MAX_SCRIPT_BYTES = 1 << 20  # whatever is larger is data


class ScriptError(Exception):
    """A script can't be read; the text says why and what to do."""


class ScriptKind(StrEnum):
    """How a script trains."""

    RUN = "worker.Run"
    KERAS = "worker.keras.fit"
    TORCH = "worker.torch.Run"
    TF1 = "worker.tf1.Run"
    FILES = "worker.files.FilesRun"
    TRAINING = "worker.Training"  # a function that returns one: an entrypoint
    PIPE = "the control pipe"  # it speaks the protocol itself
    PLAIN = "plain"


_CALLS = {
    str(script_kind): script_kind
    for script_kind in ScriptKind
    if script_kind not in (ScriptKind.PIPE, ScriptKind.PLAIN)
}
_FRAMEWORKS = ("tensorflow", "keras", "torch", "jax")


@dataclass(frozen=True, slots=True)
class ScriptSurvey:
    """What a script is. `function`: the one that returns a `worker.Training`, for an entrypoint.

    `directory`: where it keeps its checkpoints when it is started by hand, if its text says so. `options`: what its
    argparse takes; `needed`: what of it the given arguments lack. `framework`: that it imports, for a plain script.
    """

    kind: ScriptKind = ScriptKind.PLAIN
    function: str = ""
    directory: str = ""
    uses_strategy: bool = False
    options: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    framework: str = ""
    is_python: bool = True


def survey_script(path: Path, arguments: Sequence[str] = ()) -> ScriptSurvey:
    """What the script at `path` is, started with these arguments. Raises ScriptError."""
    text = _text(path)
    if path.suffix != ".py" and "python" not in text.split("\n", 1)[0]:
        return ScriptSurvey(is_python=False)
    try:
        tree = ast.parse(text, str(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        place = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else str(error)
        raise ScriptError(f"cannot read {path}: {place}; correct the script first") from error
    try:
        return _survey(tree, arguments)
    except RecursionError as error:
        raise ScriptError(
            f"cannot read {path}: its expressions are nested too deeply; write the file by hand"
        ) from error


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
        _, packages = _imported_names(tree)
        if "worker" in packages or any(text == launch.VARIABLE for text in _texts(_expressions(tree))):
            return WorkerUse.YES, set()
        for module in _imported_modules(tree):
            beside = [file for file in _files_of(script.parent, module) if file.is_file()]
            waiting += [path for path in beside if path not in seen]
            seen |= {*beside}
            package = module.partition(".")[0]
            is_own = beside or (script.parent / package).is_dir() or (script.parent / f"{package}.py").is_file()
            if not is_own and package not in (*sys.stdlib_module_names, *_FRAMEWORKS):
                foreign.add(package)
        foreign |= packages & _RUNS_OTHERS
    return WorkerUse.UNKNOWN if foreign or waiting else WorkerUse.NO, foreign


_RUNS_OTHERS = frozenset({"importlib", "runpy", "subprocess", "multiprocessing"})
"""Of the standard library: what may run a script that this one does not import."""


def _parsed(path: Path) -> ast.Module | None:
    try:
        return ast.parse(_text(path), str(path))
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


def _text(path: Path) -> str:
    if path.suffix == ".ipynb":
        remedy = "write it as a script first: jupyter nbconvert --to script"
        raise ScriptError(f"cannot run {path}: it is a notebook; {remedy} {path}")
    try:
        # O_NONBLOCK: opening a named pipe must not wait for a writer
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ScriptError(f"cannot read {path}: it is not a regular file; name the script itself")
            content = file.read(MAX_SCRIPT_BYTES + 1)
    except (OSError, ValueError) as error:
        cause = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ScriptError(f"cannot read {path}: {cause}; name the script that trains") from error
    if len(content) > MAX_SCRIPT_BYTES:
        raise ScriptError(f"cannot read {path}: it is larger than {MAX_SCRIPT_BYTES} bytes; is it a script?")
    return content.decode("utf-8-sig", errors="replace")


def _survey(tree: ast.Module, arguments: Sequence[str]) -> ScriptSurvey:
    imported, modules = _imported_names(tree)
    calls = [(_resolved(node.func, imported), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    used = {_CALLS[name]: call for name, call in reversed(calls) if name in _CALLS}
    kind = next(
        (script_kind for script_kind in ScriptKind if script_kind in used and script_kind is not ScriptKind.TRAINING),
        ScriptKind.PLAIN,
    )
    function = _function_that_returns_training(tree, imported) if kind is ScriptKind.PLAIN else ""
    if function:
        kind = ScriptKind.TRAINING
    elif kind is ScriptKind.PLAIN and any(text == launch.VARIABLE for text in _texts(_expressions(tree))):
        kind = ScriptKind.PIPE
    options, needed = _arguments([call for _, call in calls], arguments)
    return ScriptSurvey(
        kind=kind,
        function=function,
        directory=_text_of(used[kind], "directory") if kind in used else "",
        uses_strategy=any(name == "worker.strategy" for name, _ in calls) or kind is ScriptKind.TRAINING,
        options=options,
        needed=needed,
        framework=next((framework for framework in _FRAMEWORKS if framework in modules), ""),
    )


def _expressions(tree: ast.Module) -> Iterator[ast.expr]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.expr))


def _imported_names(tree: ast.Module) -> tuple[dict[str, str], set[str]]:
    """By the name that the script uses: what of `worker` it stands for; and every package that is imported."""
    names, packages = dict[str, str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                packages.add(name.name.partition(".")[0])
                if name.name.partition(".")[0] == "worker":
                    names[name.asname or "worker"] = name.name if name.asname else "worker"
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            packages.add(node.module.partition(".")[0])
            if node.module.partition(".")[0] == "worker":
                names |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
    return names, packages


def _resolved(function: ast.expr, imported: dict[str, str]) -> str:
    """The full name of what is called, if it is the package `worker`'s."""
    parts: list[str] = []
    while isinstance(function, ast.Attribute):
        parts.append(function.attr)
        function = function.value
    if not isinstance(function, ast.Name) or function.id not in imported:
        return ""
    return ".".join([imported[function.id], *reversed(parts)])


def _function_that_returns_training(tree: ast.Module, imported: dict[str, str]) -> str:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not _has_required_parameters(node):
            for inner in ast.walk(node):
                value = inner.value if isinstance(inner, ast.Return) else None
                if isinstance(value, ast.Call) and _resolved(value.func, imported) == ScriptKind.TRAINING:
                    return node.name
    return ""


def _has_required_parameters(function: ast.FunctionDef) -> bool:
    given = function.args
    return len(given.posonlyargs) + len(given.args) > len(given.defaults) or None in given.kw_defaults


def _arguments(calls: list[ast.Call], given: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The options and positional arguments of argparse, and which of those that must be given are not."""
    options, needed = list[str](), list[str]()
    words = {word.partition("=")[0] for word in given}
    for call in calls:
        if not (isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"):
            continue
        names = [*_texts(call.args)]
        if not names:
            continue
        shown = max(names, key=len)
        options.append(shown)
        if shown.startswith("-"):
            is_missing = _is_true(call, "required") and not words & {*names}
        else:
            is_missing = not given and _text_of(call, "nargs") not in ("?", "*", "...")
        if is_missing:
            needed.append(shown)
    return tuple(dict.fromkeys(options)), tuple(dict.fromkeys(needed))


def _texts(arguments: Iterable[ast.expr]) -> Iterator[str]:
    return (
        argument.value
        for argument in arguments
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    )


def _text_of(call: ast.Call, keyword: str) -> str:
    return next(iter(_texts([argument.value for argument in call.keywords if argument.arg == keyword])), "")


def _is_true(call: ast.Call, keyword: str) -> bool:
    given = [argument.value for argument in call.keywords if argument.arg == keyword]
    return any(isinstance(node, ast.Constant) and node.value is True for node in given)
