"""docs/configuration.md says what the code does: every key, its default and its meaning, and none that isn't there."""

import re

import pytest

from supervisor.config import load_config
from supervisor.config.keys.hooks import HookKeys
from supervisor.config.reference import TABLES, all_tables
from supervisor.config.schema.section import SectionModel
from supervisor.config.supervisor_keys import PROGRAM, SECTIONS, SUPERVISORD
from tests.places import ROOT

PAGE = (ROOT / "docs/configuration.md").read_text()


@pytest.mark.parametrize("heading", list(all_tables()))
def test_the_page_holds_the_generated_tables(heading):
    begin = PAGE.index(f"### {heading}\n")

    command = "python -m supervisor.config.reference prints it"
    assert all_tables()[heading] in PAGE[begin : PAGE.find("\n### ", begin)], command


def test_the_page_names_no_key_that_is_not_there():
    known = {*SECTIONS, *PROGRAM, *SUPERVISORD}.union(*(model.ini_keys() for _, model in TABLES))
    in_tables = re.findall(r"^\| `(\w+)`", PAGE, re.MULTILINE)

    assert set(in_tables) <= known


def test_the_page_of_hooks_has_every_hook():
    rows = re.findall(r"^\| `(hook_\w+)` \|", (ROOT / "docs/hooks.md").read_text(), re.MULTILINE)

    assert rows == [field.name for field, _ in HookKeys.described_fields()]


@pytest.mark.parametrize(("heading", "model"), TABLES)
def test_every_key_says_what_it_means(heading: str, model: type[SectionModel]):
    for field, about in model.described_fields():
        assert len(about.description) > 10, f"{heading} {field.name}"


def test_the_example_of_the_page_is_good(tmp_path):
    example = re.search(r"```ini\n(.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "supervisord.conf"
    path.write_text(example[1])

    assert list(load_config(path, {}).programs) == ["digits", "tensorboard"]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.conf")), ids=lambda path: path.name)
def test_the_examples_are_good(path):
    variables = re.findall(r"%\(ENV_(\w+)\)s", path.read_text())

    assert load_config(path, dict.fromkeys(variables, "x")).programs
