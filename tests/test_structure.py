"""The shape of the source tree: what the linter's contracts between folders can't say."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.places import ROOT

FILES = [path for package in ("supervisor", "worker") for path in sorted((ROOT / package).rglob("*.py"))]
SAME_IDEA = {"Run"}
"""Class names that may be in several files: one idea under several frameworks (`worker.Run`, `worker.torch.Run`, …), or
as an order and in a record."""
MOST_MODULES = 18
"""In a folder: with more, nobody finds the right one by its name."""


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in FILES}


def imported(module: str) -> Iterator[str]:
    """The modules that `module` imports, also later or for type checkers only."""
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for each in node.names:
                name = f"{node.module}.{each.name}"
                yield name if name in MODULES else node.module


def cycles(imports: dict[str, set[str]]) -> list[list[str]]:
    """One cycle for each module that is part of one, as a list of modules in import order."""
    found, done = [], set[str]()

    def walk(module: str, path: list[str]) -> None:
        if module in path:
            found.append([*path[path.index(module) :], module])
            return
        if module in done:
            return
        for each in sorted(imports[module]):
            walk(each, [*path, module])
        done.add(module)

    for module in imports:
        walk(module, [])
    return found


def test_no_file_imports_itself_through_others():
    """Lazy imports and those for type checkers count too: they hide a cycle, they don't remove it."""
    imports = {module: {each for each in imported(module) if each in MODULES} - {module} for module in MODULES}

    assert cycles(imports) == []


def test_a_cycle_is_found():
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c", "b"]]


def test_no_class_name_is_in_two_files():
    places = defaultdict(set)
    for module, path in MODULES.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].add(module)

    assert {name: where for name, where in places.items() if len(where) > 1 and name not in SAME_IDEA} == {}


@pytest.mark.parametrize(
    "folder", sorted({path.parent for path in FILES}), ids=lambda path: str(path.relative_to(ROOT))
)
def test_a_folder_says_what_it_is_for_and_is_small(folder: Path):
    modules = [path for path in FILES if path.parent == folder and path.name != "__init__.py"]

    assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), "no docstring"
    assert len(modules) <= MOST_MODULES


def test_no_encoder_writes_numbers_that_are_not_finite():
    """JSON has no words for them: what reads `Infinity` fails, or reads something else."""
    calls = [
        (module, node.lineno)
        for module, path in MODULES.items()
        if module.startswith("supervisor")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("json.dumps", "json.dump")
        if "allow_nan=False" not in ast.unparse(node)
    ]

    assert calls == []
