"""docs/recipes.md names what is there: files, headings, and calls."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "recipes.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| [")]


@pytest.mark.parametrize("row", ROWS)
def test_every_recipe_has_its_section_and_its_test(row: str) -> None:
    (anchor,) = re.findall(r"\]\(#([^)]+)\)", row)
    headings = [re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in re.findall(r"^## (.+)$", PAGE, re.M)]
    tests = [each if "/" in each else f"tests/worker/{each}" for each in re.findall(r"[\w/]+\.py", row.split("|")[-2])]

    assert anchor in headings
    assert tests and all((ROOT / each).is_file() for each in tests)


def test_every_link_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", PAGE)

    assert links and all((ROOT / "docs" / each).resolve().is_file() for each in links)


def test_every_call_it_names_exists() -> None:
    calls = set(re.findall(r"`?worker\.((?:\w+\.)?\w+)\b", PAGE))

    assert {"keras.fit", "torch.Run", "tf1.Run", "export.export", "files.FilesRun", "Run"} <= calls
    for call in calls:
        module, _, name = call.rpartition(".")
        text = (ROOT / "worker" / f"{module or '__init__'}.py").read_text()
        assert re.search(rf"(def|class) {name}\b" if module else rf'"{name}"', text), call
