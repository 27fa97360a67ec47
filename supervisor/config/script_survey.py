"""What a script is, as far as its text tells: how it uses the package `worker`, and which arguments it needs.

Nothing is imported or run. `supervisord --init` writes its file by this.
"""

import ast
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from supervisor.protocol.wire import launch

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


_CALLS = {str(each): each for each in ScriptKind if each not in (ScriptKind.PIPE, ScriptKind.PLAIN)}
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
    calls = [(_resolved(each.func, imported), each) for each in ast.walk(tree) if isinstance(each, ast.Call)]
    used = {_CALLS[name]: call for name, call in reversed(calls) if name in _CALLS}
    kind = next((each for each in ScriptKind if each in used and each is not ScriptKind.TRAINING), ScriptKind.PLAIN)
    function = _function_that_returns_training(tree, imported) if kind is ScriptKind.PLAIN else ""
    if function:
        kind = ScriptKind.TRAINING
    elif kind is ScriptKind.PLAIN and any(each == launch.VARIABLE for each in _texts(_expressions(tree))):
        kind = ScriptKind.PIPE
    options, needed = _arguments([call for _, call in calls], arguments)
    return ScriptSurvey(
        kind=kind,
        function=function,
        directory=_text_of(used[kind], "directory") if kind in used else "",
        uses_strategy=any(name == "worker.strategy" for name, _ in calls) or kind is ScriptKind.TRAINING,
        options=options,
        needed=needed,
        framework=next((each for each in _FRAMEWORKS if each in modules), ""),
    )


def _expressions(tree: ast.Module) -> Iterator[ast.expr]:
    return (each for each in ast.walk(tree) if isinstance(each, ast.expr))


def _imported_names(tree: ast.Module) -> tuple[dict[str, str], set[str]]:
    """By the name that the script uses: what of `worker` it stands for; and every package that is imported."""
    names, packages = dict[str, str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                packages.add(each.name.partition(".")[0])
                if each.name.partition(".")[0] == "worker":
                    names[each.asname or "worker"] = each.name if each.asname else "worker"
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            packages.add(node.module.partition(".")[0])
            if node.module.partition(".")[0] == "worker":
                names |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
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
            for each in ast.walk(node):
                value = each.value if isinstance(each, ast.Return) else None
                if isinstance(value, ast.Call) and _resolved(value.func, imported) == ScriptKind.TRAINING:
                    return node.name
    return ""


def _has_required_parameters(function: ast.FunctionDef) -> bool:
    given = function.args
    return len(given.posonlyargs) + len(given.args) > len(given.defaults) or None in given.kw_defaults


def _arguments(calls: list[ast.Call], given: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The options and positional arguments of argparse, and which of those that must be given are not."""
    options, needed = list[str](), list[str]()
    words = {each.partition("=")[0] for each in given}
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
    return (each.value for each in arguments if isinstance(each, ast.Constant) and isinstance(each.value, str))


def _text_of(call: ast.Call, keyword: str) -> str:
    return next(iter(_texts([each.value for each in call.keywords if each.arg == keyword])), "")


def _is_true(call: ast.Call, keyword: str) -> bool:
    given = [each.value for each in call.keywords if each.arg == keyword]
    return any(isinstance(each, ast.Constant) and each.value is True for each in given)
