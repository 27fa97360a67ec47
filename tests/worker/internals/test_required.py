"""Names of TensorFlow and Keras that are not public: only `worker/internals` uses them, and checks that they exist."""

import ast
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.places import ROOT
from worker.internals.required import require

OUTSIDE = [path for path in sorted((ROOT / "worker").rglob("*.py")) if path.parent.name != "internals"]
PRIVATE = re.compile(r"(tensorflow\.python|keras\.src)(\..*)?")


@pytest.fixture(autouse=True)
def _release(monkeypatch: pytest.MonkeyPatch) -> None:
    """A TensorFlow 2.99 that has one private module, with one class."""
    library, kept = types.ModuleType("tensorflow"), types.ModuleType("tensorflow.kept")
    library.__path__ = []  # type: ignore[attr-defined]
    library.__version__ = "2.99.0"  # type: ignore[attr-defined]
    kept.Dataset = type("Dataset", (), {"_inputs": 1})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorflow", library)
    monkeypatch.setitem(sys.modules, "tensorflow.kept", kept)


def test_names_that_are_there_pass() -> None:
    assert require("tensorflow.kept", "Dataset._inputs").__name__ == "tensorflow.kept"


@pytest.mark.parametrize(
    ("module", "name", "named"),
    [
        ("tensorflow.kept", "Dataset._parents", "no Dataset._parents in tensorflow.kept"),
        ("tensorflow.kept", "Iterator._next", "no Iterator._next in tensorflow.kept"),
        ("tensorflow.moved.away", "anything", "no module tensorflow.moved.away"),
    ],
)
def test_release_that_lacks_a_name_is_refused_with_its_version_and_what_to_do(
    module: str, name: str, named: str
) -> None:
    with pytest.raises(ImportError) as refused:
        require(module, name)

    assert not isinstance(refused.value, ModuleNotFoundError)  # `worker` would say that TensorFlow is not installed
    assert f"cannot use TensorFlow 2.99.0: it has {named}" in str(refused.value)
    assert "install a newer stepkeeper, or an earlier" in str(refused.value)


def test_library_that_is_not_installed_stays_a_missing_module() -> None:
    with pytest.raises(ModuleNotFoundError) as missing:
        require("not_installed.src.tree", "flatten")

    assert missing.value.name == "not_installed"


def imported(path: Path) -> Iterator[str]:
    text = path.read_text()
    if not re.search(r"\b(python|src)\b", text):
        return  # no such module has another name, and to parse all files takes a second
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_else_imports_what_is_not_public(path: Path) -> None:
    assert [name for name in imported(path) if PRIVATE.fullmatch(name)] == []
