"""What a script is, as far as its text tells: how it uses the package `worker`, and which arguments it needs.

Nothing is imported or run. `supervisord --init` writes its file by this, and `--check-config` looks at jobs.
"""

import ast
import contextlib
import errno
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from supervisor.protocol.durable import open_regular
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


_CALLS = {
    str(script_kind): script_kind
    for script_kind in ScriptKind
    if script_kind not in (ScriptKind.PIPE, ScriptKind.PLAIN)
}
FRAMEWORKS = ("tensorflow", "keras", "torch", "jax")


@dataclass(frozen=True, slots=True)
class ScriptSurvey:
    """What a script is. `function`: the one that returns a `worker.Training`, for an entrypoint.

    `directory`: where it keeps its checkpoints when it is started by hand, if its text says so. `options`: what its
    argparse takes; `needed`: what of it the given arguments lack. `framework`: that it imports, for a plain script.
    `imports`: the packages that it can't begin without; `levels`: how far up its relative imports reach. `texts`: those
    that may be relative paths. `magic_line`: where it needs IPython. `resumes`: what it restores a state with itself.
    `shebang`: the words of its first line, if it is no Python.
    """

    kind: ScriptKind = ScriptKind.PLAIN
    function: str = ""
    directory: str = ""
    uses_strategy: bool = False
    options: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    framework: str = ""
    is_python: bool = True
    imports: tuple[str, ...] = ()
    levels: int = 0
    texts: tuple[str, ...] = ()
    magic_line: int | None = None
    resumes: str = ""
    shebang: tuple[str, ...] = ()


def survey_script(path: Path, arguments: Sequence[str] = ()) -> ScriptSurvey:
    """What the script at `path` is, started with these arguments. Raises ScriptError."""
    text = read_script(path)
    first = text.split("\n", 1)[0]
    if path.suffix != ".py" and "python" not in first:
        return _survey_other(path, text)
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


def _survey_other(path: Path, text: str) -> ScriptSurvey:
    """A script in another language, as a rule the shell's: a job if it names a script beside it that is one."""
    first = text.split("\n", 1)[0]
    shebang = first[2:].split(maxsplit=1) if first.startswith("#!") else []  # one argument at most, as in execve(2)
    whole = ScriptSurvey(is_python=False, shebang=tuple(word.strip() for word in shebang))
    for word in dict.fromkeys(text.split()):
        named = path.parent / word.strip("\"';")
        if named.suffix == ".py" and len(word) < _MOST_PATH and named.is_file():
            with contextlib.suppress(ScriptError):
                survey = survey_script(named)
                if survey.kind not in (ScriptKind.PLAIN, ScriptKind.TRAINING):
                    return replace(whole, kind=survey.kind, directory=survey.directory)
    return whole


def read_script(path: Path) -> str:
    if path.suffix == ".ipynb":
        remedy = "write it as a script first: jupyter nbconvert --to script"
        raise ScriptError(f"cannot run {path}: it is a notebook; {remedy} {path}")
    try:
        with open_regular(path) as file:
            content = file.read(MAX_SCRIPT_BYTES + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENXIO:
            raise ScriptError(f"cannot read {path}: it is not a regular file; name the script itself") from error
        cause = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ScriptError(f"cannot read {path}: {cause}; name the script that trains") from error
    if len(content) > MAX_SCRIPT_BYTES:
        raise ScriptError(f"cannot read {path}: it is larger than {MAX_SCRIPT_BYTES} bytes; is it a script?")
    return content.decode("utf-8-sig", errors="replace")


def _survey(tree: ast.Module, arguments: Sequence[str]) -> ScriptSurvey:
    imported, modules = imported_names(tree)
    calls = [(_resolved(node.func, imported), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    used = {_CALLS[name]: call for name, call in reversed(calls) if name in _CALLS}
    kind = next(
        (script_kind for script_kind in ScriptKind if script_kind in used and script_kind is not ScriptKind.TRAINING),
        ScriptKind.PLAIN,
    )
    function = _function_that_returns_training(tree, imported) if kind is ScriptKind.PLAIN else ""
    if function:
        kind = ScriptKind.TRAINING
    elif kind is ScriptKind.PLAIN and any(text == launch.VARIABLE for text in texts_of(expressions(tree))):
        kind = ScriptKind.PIPE
    options, needed = _arguments([call for _, call in calls], arguments)
    needed = (*needed, *_positions(tree, arguments))
    return ScriptSurvey(
        kind=kind,
        function=function,
        directory=_text_of(used[kind], "directory") if kind in used else "",
        uses_strategy=any(name == "worker.strategy" for name, _ in calls) or kind is ScriptKind.TRAINING,
        options=options,
        needed=needed,
        framework=next((framework for framework in FRAMEWORKS if framework in modules), ""),
        imports=tuple(dict.fromkeys(_needed_packages(tree))),
        levels=max((node.level for node in tree.body if isinstance(node, ast.ImportFrom)), default=0),
        texts=tuple(dict.fromkeys(filter(_may_be_path, texts_of(expressions(tree))))),
        magic_line=next((node.lineno for name, node in _calls_by_name(tree) if name == "get_ipython"), None),
        resumes=next((f"{name} in line {node.lineno}" for name, node in _calls_by_name(tree) if name in _RESUMES), ""),
    )


_RESUMES = frozenset(
    {"CheckpointManager", "BackupAndRestore", "load_state_dict", "load_weights", "restore_or_initialize"}
)
_MOST_PATH = 200  # characters


def _needed_packages(tree: ast.Module) -> Iterator[str]:
    """What is imported at the top of the script, with nothing around it that would forgive its absence."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _calls_by_name(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield getattr(node.func, "attr", getattr(node.func, "id", "")), node


def _may_be_path(text: str) -> bool:
    is_short = 2 < len(text) <= _MOST_PATH and text.isprintable()
    return is_short and ("/" in text or "." in text) and not text.startswith(("/", "~")) and "://" not in text


def expressions(tree: ast.Module) -> Iterator[ast.expr]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.expr))


def imported_names(tree: ast.Module) -> tuple[dict[str, str], set[str]]:
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
    parameters = function.args
    required = len(parameters.posonlyargs) + len(parameters.args) - len(parameters.defaults)
    return required > 0 or None in parameters.kw_defaults


def _arguments(calls: list[ast.Call], command_line: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The options and positional arguments of argparse, and which of those that must be given are not."""
    options, needed = list[str](), list[str]()
    words = {word.partition("=")[0] for word in command_line}
    for call in calls:
        if not (isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"):
            continue
        names = [*texts_of(call.args)]
        if not names:
            continue
        shown = max(names, key=len)
        options.append(shown)
        if shown.startswith("-"):
            is_missing = _is_true(call, "required") and not words & {*names}
        else:
            is_missing = not command_line and _text_of(call, "nargs") not in ("?", "*", "...")
        if is_missing:
            needed.append(shown)
    return tuple(dict.fromkeys(options)), tuple(dict.fromkeys(needed))


def _positions(tree: ast.Module, command_line: Sequence[str]) -> Iterator[str]:
    """The entries of sys.argv that the script takes and nobody gives, unless it counts them."""
    wanted = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "len" and _is_argv(*node.args[:1]):
            return
        if isinstance(node, ast.Subscript) and _is_argv(node.value):
            index = node.slice
            if isinstance(index, ast.Constant) and isinstance(index.value, int):
                wanted = max(wanted, index.value)
    yield from (f"sys.argv[{number}]" for number in range(len(command_line) + 1, min(wanted, _MOST_ARGUMENTS) + 1))


_MOST_ARGUMENTS = 20


def _is_argv(node: ast.expr | None = None) -> bool:
    return "argv" in (getattr(node, "attr", ""), getattr(node, "id", ""))


def texts_of(arguments: Iterable[ast.expr]) -> Iterator[str]:
    return (
        argument.value
        for argument in arguments
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    )


def _text_of(call: ast.Call, keyword: str) -> str:
    return next(iter(texts_of([argument.value for argument in call.keywords if argument.arg == keyword])), "")


def _is_true(call: ast.Call, keyword: str) -> bool:
    values = [argument.value for argument in call.keywords if argument.arg == keyword]
    return any(isinstance(node, ast.Constant) and node.value is True for node in values)
