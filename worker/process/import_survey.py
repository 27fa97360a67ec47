"""Reads, without running it, what a script imports before it does anything else.

An automatic standby imports packages for a script that knows nothing of standbys (`preload.py`). It may import only
what the script would have imported with nothing done before it: a script that sets `os.environ` and then imports
TensorFlow gets another TensorFlow if the order changes. So the statements are read in the order in which Python would
run them, through the modules beside the script too, and reading ends at the first one that may have an effect.
Importing a package counts as one, unless it is known to change nothing that a later import depends on. What was found
up to there is a prefix of what the script does, so importing it early changes nothing.
"""

import ast
import os
import re
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from worker.process.quiet_statements import is_quiet, is_quiet_statement

MAX_BYTES = 1 << 20  # of one source file: more was generated, and takes seconds to read
MAX_MODULES = 500  # of the job's own: reading them must not take longer than the imports

LOADED = frozenset(
    {
        "absl", "datasets", "h5py", "jax", "keras", "matplotlib", "numpy", "optree", "pandas", "PIL", "pyarrow",
        "safetensors", "scipy", "sklearn", "tensorflow", "tensorflow_datasets", "tensorflow_hub",
        "tensorflow_probability", "tf_keras", "tokenizers", "torch", "torchaudio", "torchvision", "transformers",
    }
)  # fmt: skip
"""Packages that are imported ahead. Importing them opens no device, joins no group of processes, and reads nothing of
the environment that differs between a standby and its attempt."""

PASSED_OVER = frozenset(
    {
        "attr", "attrs", "click", "cloudpickle", "dataclasses_json", "einops", "fire", "fsspec", "gin", "google",
        "hydra", "joblib", "loguru", "ml_collections", "msgpack", "omegaconf", "orjson", "packaging", "pkg_resources",
        "psutil", "pydantic", "regex", "requests", "rich", "setuptools", "simplejson", "six", "structlog", "supervisor",
        "tabulate", "termcolor", "toml", "tqdm", "typer", "typing_extensions", "yaml",
    }
)  # fmt: skip
"""Packages that are quick to import and change nothing for those after them. Others end the reading: mpi4py and
pycuda.autoinit open something, comet_ml and unsloth must come before the frameworks that they change."""

_READS = ("copy", "get", "items", "keys", "values")  # of os.environ
_ENVIRONMENT = re.compile(r"putenv|dotenv|set_backend|environ as ")


@dataclass(frozen=True, slots=True)
class Import:
    """One import of a package: `from_names` as in `from module import from_names`."""

    module: str
    from_names: tuple[str, ...] = ()


@dataclass(slots=True)
class Survey:
    """What was read. `worker_names`: what the sources use of the package `worker`; empty if they don't import it.

    `ends_at`: the statement at which reading ended; None: at the end. `is_settled`: nothing in the sources changes the
    environment, or may do so, later on.
    """

    imports: list[Import] = field(default_factory=list)
    ends_at: str | None = None
    imports_worker: bool = False
    worker_names: set[str] = field(default_factory=set)
    uses_keras: bool = False
    is_settled: bool = True


class _Effect(Exception):
    """Reading ends here; the text says at what."""


def survey(script: Path, search: Sequence[str]) -> Survey:
    """Reads a script. `search`: `sys.path` as the script will have it."""
    reader = _Reader(search)
    try:
        reader.read(script, None)
    except _Effect as error:
        reader.result.ends_at = str(error)
    reader.look_at_the_rest()
    return reader.result


class _Reader:
    def __init__(self, search: Sequence[str]) -> None:
        self.result = Survey()
        self._search = list(search)
        self._visited: set[str] = set()
        self._trees: list[ast.Module] = []

    def read(self, path: Path, package: str | None, is_script: bool = True) -> None:
        """Reads the statements of one file. `package`: what its relative imports start from."""
        if len(self._trees) >= MAX_MODULES:
            raise _Effect(f"{path.name}: more than {MAX_MODULES} modules")
        try:
            with path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
            if len(content) > MAX_BYTES:
                raise _Effect(f"{path.name}: larger than {MAX_BYTES} bytes")
            tree = ast.parse(content, str(path))
            self._trees.append(tree)
            self.result.is_settled &= _ENVIRONMENT.search(content.decode(errors="replace")) is None
            for statement in tree.body:
                if _is_main_guard(statement):
                    if is_script:
                        raise _Effect(f"{path.name}:{statement.lineno}: {ast.unparse(statement).splitlines()[0]:.60}")
                else:
                    self._read_statement(statement, path, package)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise _Effect(f"{path.name}: {error}") from error

    def look_at_the_rest(self) -> None:
        """Collects what doesn't depend on the order."""
        result = self.result
        for node in (part for tree in self._trees for part in ast.walk(tree)):
            result.is_settled &= not _may_change_environment(node)
            match node:
                case ast.Import(names=names):
                    modules = [name.name for name in names]
                case ast.ImportFrom(module=str(module), level=0):
                    modules = [module]
                case ast.Attribute(value=ast.Name(id="worker"), attr=attribute):
                    result.worker_names.add(attribute)
                    continue
                case ast.Attribute(attr="keras"):
                    result.uses_keras = True
                    continue
                case _:
                    continue
            result.imports_worker |= any(_top(module) == "worker" for module in modules)
            for module in modules:
                if module not in self._visited and not self._is_known(module):
                    result.is_settled = False

    # --- statements ---------------------------------------------------------------------------------------------------

    def _read_statement(self, statement: ast.stmt, path: Path, package: str | None) -> None:
        match statement:
            case ast.Import(names=names):
                for alias in names:
                    self._import(alias.name, (), path, statement)
            case ast.ImportFrom(module="__future__", level=0):
                pass
            case ast.ImportFrom(module=module, names=names, level=level):
                name = _absolute(module, level, package)
                if name is None:
                    raise _end(path, statement)
                self._import(name, tuple(alias.name for alias in names), path, statement)
            case _ if is_quiet_statement(statement):
                pass
            case _:
                name = _used_of_worker(statement)
                if name is not None:  # what is done first is to load it
                    self.result.imports.append(Import("worker", (name,)))
                if name != "strategy":  # this one configures devices, on which no import depends
                    raise _end(path, statement)

    def _import(self, name: str, from_names: tuple[str, ...], path: Path, statement: ast.stmt) -> None:
        top = _top(name)
        spec = PathFinder.find_spec(top, self._search)
        if self._is_own(spec):
            self._read_own(name, from_names, path, statement)
        elif top == "worker" or top in LOADED:
            self.result.imports.append(Import(name, tuple(from_name for from_name in from_names if from_name != "*")))
        elif not self._is_known(top):
            raise _end(path, statement)

    def _is_known(self, name: str) -> bool:
        """Whether importing it changes nothing for others."""
        top = _top(name)
        known = top == "worker" or top in LOADED or top in PASSED_OVER or top in sys.stdlib_module_names
        return known and not self._is_own(PathFinder.find_spec(top, self._search))

    def _is_own(self, spec: ModuleSpec | None) -> bool:
        """Whether a module is the job's own: it came neither with Python nor with an installed package."""
        if spec is None or spec.name in ("worker", "supervisor"):
            return False
        places = [spec.origin] if spec.has_location else list(spec.submodule_search_locations or ())
        return any(place is not None and not _is_installed(place) for place in places)

    def _read_own(self, name: str, from_names: tuple[str, ...], path: Path, statement: ast.stmt) -> None:
        """Reads a module of the job's, after the packages that contain it, and submodules taken from it."""
        search, reached = self._search, ""
        for part in name.split("."):
            reached = f"{reached}.{part}".lstrip(".")
            spec = PathFinder.find_spec(reached, search)
            if spec is None:
                raise _end(path, statement)
            self._read_module(spec, path, statement)
            search = list(spec.submodule_search_locations or ())
        for from_name in from_names:
            if search and (spec := PathFinder.find_spec(f"{name}.{from_name}", search)) is not None:
                self._read_module(spec, path, statement)

    def _read_module(self, spec: ModuleSpec, path: Path, statement: ast.stmt) -> None:
        if spec.name in self._visited:
            return
        self._visited.add(spec.name)
        if not spec.has_location:
            return  # a folder without an __init__.py
        if spec.origin is None or not spec.origin.endswith(".py"):
            raise _end(path, statement)
        is_package = spec.submodule_search_locations is not None
        self.read(Path(spec.origin), spec.name if is_package else spec.name.rpartition(".")[0], is_script=False)


def _top(name: str) -> str:
    return name.partition(".")[0]


def _absolute(module: str | None, level: int, package: str | None) -> str | None:
    """The full name in `from ..module import`; None if there is no such package."""
    if level == 0:
        return module
    parts = (package or "").split(".")
    if not package or level > len(parts):
        return None
    return ".".join([*parts[: len(parts) - level + 1], *([module] if module else [])])


def _is_installed(place: str) -> bool:
    """Whether a file came with Python or with an installed package, wherever that is on `sys.path`."""
    if {"site-packages", "dist-packages"} & set(Path(place).parts):
        return True
    paths = sysconfig.get_paths()
    return any(place.startswith(f"{paths[key]}{os.sep}") for key in ("stdlib", "platstdlib"))


def _end(path: Path, statement: ast.stmt) -> _Effect:
    return _Effect(f"{path.name}:{statement.lineno}: {ast.unparse(statement).splitlines()[0]:.60}")


def _used_of_worker(statement: ast.stmt) -> str | None:
    """The name in `x = worker.name(...)`, `worker.name(...)` and `with worker.name(...)`; None for other statements."""
    match statement:
        case ast.Assign(targets=[ast.Name()], value=called) | ast.Expr(value=called):
            pass
        case ast.With(items=[ast.withitem(context_expr=called), *_]):
            pass
        case _:
            return None
    match called:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="worker"), attr=name), args=arguments, keywords=keywords):
            quiet = name != "strategy" or all(map(is_quiet, (*arguments, *(keyword.value for keyword in keywords))))
            return name if quiet else None
    return None


def _may_change_environment(node: ast.AST) -> bool:
    """Whether an expression uses `os.environ` in another way than to read a value."""
    match node:
        case ast.Attribute(value=ast.Name(id="environ") | ast.Attribute(attr="environ"), attr=name):
            return name not in _READS
        case ast.Subscript(value=ast.Name(id="environ") | ast.Attribute(attr="environ"), ctx=context):
            return not isinstance(context, ast.Load)
        case ast.AugAssign(target=ast.Name(id="environ") | ast.Attribute(attr="environ")):
            return True
        case ast.Assign(value=ast.Name(id="environ") | ast.Attribute(attr="environ")):
            return True  # under another name
        case ast.Call(func=function, args=arguments):
            takes_environment = any(
                isinstance(argument, ast.Name | ast.Attribute) and _name_of(argument) == "environ"
                for argument in arguments
            )
            return takes_environment and _name_of(function) != "dict"
    return False


def _name_of(node: ast.expr) -> str | None:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def _is_main_guard(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and ast.unparse(statement.test) in (
        "__name__ == '__main__'",
        "'__main__' == __name__",
    )
