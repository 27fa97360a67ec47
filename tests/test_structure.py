"""The shape of the source tree: what the linter's contracts between folders can't say."""

import ast
import gc
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.places import ROOT

FILES = [path for package in ("supervisor", "worker") for path in sorted((ROOT / package).rglob("*.py"))]
SAME_IDEA = {"Run"}
"""Class names that may be in several files: one idea under several frameworks (`worker.Run`, `worker.torch.Run`, …), or
as an order and in a record."""
MOST_MODULES = 18
"""In a folder: with more, nobody finds the right one by its name."""


PROSE = re.compile(r'^ *r?"""(?s:.*?)"""|(?:^| ) *#.*$', re.MULTILINE)
"""Docstrings and comments, also those of fields."""
NAMED = re.compile(r"`([A-Za-z_]\w*(?:\.\w+)*|[\w/-]+\.py)(?:\(\))?`")
"""A name in a docstring or comment: of something in the code, or of a file."""
WORD = re.compile(r"\w+")
OF_OTHERS = {"fail_under", "preemptionNoticeDuration", "uname"}
"""Names of other programs."""


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in FILES}


@pytest.fixture(autouse=True)
def _no_search_for_garbage() -> Iterator[None]:
    """A tree has thousands of objects, none of which is garbage, and `tree_of` keeps them all."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@cache
def tree_of(path: Path) -> ast.Module:
    """What a file says. Parsing all files takes a second, and several tests read them."""
    return ast.parse(path.read_text())


def imported(module: str) -> Iterator[str]:
    """The modules that `module` imports, also later or for type checkers only."""
    for node in statements(tree_of(MODULES[module]).body):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for each in node.names:
                name = f"{node.module}.{each.name}"
                yield name if name in MODULES else node.module


def statements(body: list[ast.AST]) -> Iterator[ast.AST]:
    """Those of a block, with those inside them; a tenth of all nodes."""
    for node in body:
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            if isinstance(inner := getattr(node, name, None), list):  # of a lambda it is an expression
                yield from statements(inner)


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


@pytest.mark.thorough
def test_no_file_imports_itself_through_others():
    """Lazy imports and those for type checkers count too: they hide a cycle, they don't remove it."""
    imports = {module: {each for each in imported(module) if each in MODULES} - {module} for module in MODULES}

    assert cycles(imports) == []


def test_a_cycle_is_found():
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c", "b"]]


@pytest.mark.thorough
def test_no_class_name_is_in_two_files():
    places = defaultdict(set)
    for module, path in MODULES.items():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].add(module)

    assert {name: where for name, where in places.items() if len(where) > 1 and name not in SAME_IDEA} == {}


@pytest.mark.parametrize(
    "folder", sorted({path.parent for path in FILES}), ids=lambda path: str(path.relative_to(ROOT))
)
def test_a_folder_says_what_it_is_for_and_is_small(folder: Path):
    modules = [path for path in FILES if path.parent == folder and path.name != "__init__.py"]

    assert ast.get_docstring(tree_of(folder / "__init__.py")), "no docstring"
    assert len(modules) <= MOST_MODULES


@pytest.mark.thorough
def test_no_encoder_writes_numbers_that_are_not_finite():
    """JSON has no words for them: what reads `Infinity` fails, or reads something else."""
    calls = [
        (module, node.lineno)
        for module, path in MODULES.items()
        if module.startswith("supervisor") and "json.dump" in path.read_text()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("json.dumps", "json.dump")
        if "allow_nan=False" not in ast.unparse(node)
    ]

    assert calls == []


def test_sizes_in_texts_have_the_units_of_one_function():
    """A size that is written by hand has another unit than the same size elsewhere: `plurals.counted_bytes`."""
    by_hand = re.compile(r"\} ?[kKMGT]i?B\b")
    written = {module: by_hand.findall(path.read_text()) for module, path in MODULES.items()}

    assert {module for module, found in written.items() if found} == {"supervisor.config.reference"}, (
        "a default, as one would write it"
    )


def unknown_names(texts: dict[str, str], others: set[str]) -> list[str]:
    """Names in docstrings and comments that neither the code of all files has, nor `others`, as `file:line name`."""
    words, prose_of = set(others), dict[str, list[re.Match[str]]]()
    for file, text in texts.items():
        prose_of[file] = list(PROSE.finditer(text))
        ends = [0, *(place for prose in prose_of[file] for place in prose.span()), len(text)]
        code = "".join(text[start:end] for start, end in zip(ends[::2], ends[1::2], strict=True))
        words.update(WORD.findall(code))
    words.update(part for file in texts for part in Path(file).with_suffix("").parts)
    files = [f"/{file}" for file in texts]

    def is_known(name: str) -> bool:
        if name.endswith(".py"):
            return any(file.endswith(f"/{name}") for file in files)
        return words >= set(name.split("."))

    return [
        f"{file}:{text.count(chr(10), 0, prose.start() + name.start()) + 1} {name[1]}"
        for file, text in texts.items()
        for prose in prose_of[file]
        for name in NAMED.finditer(prose[0])
        if not is_known(name[1])
    ]


@pytest.mark.thorough
def test_names_in_docstrings_and_comments_exist():
    """Renaming a thing and not what is said of it sends readers to look for what is not there."""
    folders = [ROOT / folder for folder in ("supervisor", "worker", "tests", "bench", "examples", "man", "deploy")]
    texts = {
        str(path.relative_to(ROOT)): path.read_text() for folder in folders for path in sorted(folder.rglob("*.py"))
    }
    others = {path.name for path in ROOT.iterdir()} | set(re.findall(r"\w+", (ROOT / "pyproject.toml").read_text()))
    unknown = unknown_names(texts, others | OF_OTHERS)

    assert [each for each in unknown if "/training_code/" not in each] == []  # written as others would write them


FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
NO_NAME = re.compile(r".*[<=…\"]|_\w+$|.*--|vX|FAILED ONCE")
"""What is in backquotes and is an example, the end of a name, an option or an output."""


def missing_names(page: str, paths: set[str], words: set[str]) -> list[str]:
    """What a page has in backquotes and is nowhere: files, folders, modules, targets of make, names in the code."""
    ends = {f"/{path}" for path in paths} | {f"/{path.removesuffix('.py')}" for path in paths}
    ends |= {f"{end[: at.start()]}/" for end in ends for at in re.finditer(r"(?<!^)/", end)}
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    def is_there(name: str) -> bool:
        if name.startswith("make "):
            return name.split()[1] in targets
        path = name.removeprefix("python -m ").split(" ")[0]
        path = path if path.endswith((".py", ".md", ".js", ".toml", ".html", ".yml", "/")) else path.replace(".", "/")
        return any(end.endswith((f"/{path}", f"/{path}/")) for end in ends) or words | targets >= set(
            WORD.findall(name)
        )

    names = re.findall(r"`([^`\n]+)`", FENCED.sub("", page))
    return [name for name in names if not NO_NAME.match(name) and not is_there(name)]


def misplaced_names(page: str, texts: dict[str, str]) -> list[str]:
    """Names in backquotes right after a file in backquotes, that are not in such a file."""
    pairs = re.findall(r"`([\w/-]+\.py)`\s+`(\w+)`", page)
    return [
        f"{file} {name}"
        for file, name in pairs
        if not any(name in WORD.findall(text) for path, text in texts.items() if f"/{path}".endswith(f"/{file}"))
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_what_a_page_for_contributors_names_exists(name: str):
    folders = ("supervisor", "worker", "tests", "man", "deploy", "bench", "docs", "website", ".ci")
    files = [
        path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix != ".pyc"
    ]
    page, paths = (ROOT / name).read_text(), {str(path.relative_to(ROOT)) for path in files} | {"pyproject.toml"}
    code = {str(path.relative_to(ROOT)): path.read_text() for path in files if path.suffix in (".py", ".js")}

    assert missing_names(page, paths, {word for text in code.values() for word in WORD.findall(text)}) == []
    assert misplaced_names(page, code) == []


def test_a_name_that_is_nowhere_is_found():
    texts = {
        "a/b.py": '"""Calls `go` in `a/b.py`, `b.go` or `a/c.py`."""\ndef go(): ...  # not `went()`, nor `b.gone`\n'
    }

    assert unknown_names(texts, set()) == ["a/b.py:1 a/c.py", "a/b.py:2 went", "a/b.py:2 b.gone"]


def test_a_name_that_a_page_has_and_nothing_else_is_found():
    page = "`a/b.py` `go` and `b.py`\n`went`; `a/`, `a/c/`, `make nothing`, `python -m a.d`"

    assert missing_names(page, {"a/b.py"}, {"go"}) == ["went", "a/c/", "make nothing", "python -m a.d"]
    assert misplaced_names(page, {"a/b.py": "def go(): ...\n"}) == ["b.py went"]
