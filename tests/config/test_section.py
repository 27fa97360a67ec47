"""How classes stand for sections."""

import os
from pathlib import Path
from typing import Annotated

import pytest

from supervisor.config import ConfigError, load_config
from supervisor.config.schema.section import (
    FilePath,
    Positive,
    SectionError,
    SectionModel,
    internal,
    key,
    parsed_by,
    required,
    section_model,
)


@section_model
class Kitchen(SectionModel):
    stove: FilePath = required("Where it stands.")
    pots: Positive | None = key(None, "How many.")
    burners: Annotated[int, parsed_by(int)] = key(4, "How many.", alias="flames")
    labels: dict[str, str] = key({}, "What is written on them.")
    owner: str = internal("Whose.", "nobody")


def test_a_section_is_built_from_texts_and_from_values():
    given = {"stove": "left", "pots": "2", "flames": 6, "owner": "me"}

    built = Kitchen.build(given, {"stove": Path("/kitchen")})

    assert (built.stove, built.pots, built.burners, built.owner) == (Path("/kitchen/left"), 2, 6, "me")


def test_everything_wrong_is_told_at_once():
    with pytest.raises(SectionError) as refused:
        Kitchen.build({"pots": "0", "flames": "many"})

    assert [key for key, _ in refused.value.problems] == ["stove", "pots", "flames"]
    assert all(text.split("'")[1] == key or text.startswith(f"{key} ") for key, text in refused.value.problems)


def test_an_unknown_name_is_our_own_mistake():
    with pytest.raises(TypeError, match="stov"):
        Kitchen.build({"stove": "left", "stov": "right"})


def test_two_sections_share_no_default():
    assert Kitchen.build({"stove": "a"}).labels is not Kitchen.build({"stove": "b"}).labels


def test_set_keys_are_those_that_differ_from_the_default(program):
    said = program(
        "entrypoint = a:b", "checkpoint_dir = /x", "checkpoint_interval = 500 steps", "priority = 999"
    ).non_defaults()

    assert said["job"] == {
        "checkpoint_dir": Path("/x"),
        "entrypoint": "a:b",
        "checkpoint_interval": {"steps": 500},
    }
    assert "priority" not in said  # 999 is the default


def test_bytes_that_are_no_text_may_be_in_paths_only(tmp_path):
    path, environment = tmp_path / "test.conf", {"X": os.fsdecode(b"\xff")}
    path.write_text("[supervisord]\nchildlogdir = /x/%(ENV_X)s\n")

    assert os.fsencode(load_config(path, environment).supervisord.childlogdir) == b"/x/\xff"

    path.write_text("[supervisord]\nidentifier = %(ENV_X)s\n")
    with pytest.raises(ConfigError, match=r"identifier is .* not UTF-8"):
        load_config(path, environment)
