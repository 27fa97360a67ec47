"""docs/control-pipe.md is held to the code."""

import json
import re
from dataclasses import fields

import pytest

from supervisor.protocol.wire import launch, reference
from supervisor.protocol.wire.exits import PERMANENT_EXITS, WorkerExit
from supervisor.protocol.wire.launch import Launch
from supervisor.protocol.wire.messages import TYPES
from tests.places import ROOT

TEXT = (ROOT / "docs" / "control-pipe.md").read_text()


@pytest.mark.parametrize("name", TYPES)
def test_every_message_is_described_with_every_field(name: str):
    row = re.search(rf"^\| `{name}` \|.*$", TEXT, re.MULTILINE)

    assert row is not None
    for field in fields(TYPES[name]):
        assert field.name == "attempt" or f"`{field.name}`" in row[0]


def test_the_limits_of_fields_and_messages_are_those_of_the_schema():
    for limits in reference.lists().strip().split("\n\n"):
        assert limits in TEXT, "print it with python -m supervisor.protocol.wire.reference"


def test_no_message_is_invented():
    messages = TEXT[TEXT.index("## From the daemon") : TEXT.index("### Limits")]
    described = set(re.findall(r"^\| `([a-z-]+)` \|", messages, re.MULTILINE))

    assert described == set(TYPES)


@pytest.mark.parametrize("code", [status for status in WorkerExit if status != WorkerExit.USER_ERROR])
def test_every_exit_code_is_described_with_whether_it_is_retried(code: WorkerExit):
    row = re.search(rf"^\| {int(code)} \|.*\| (\w*) ?\|$", TEXT, re.MULTILINE)

    assert row is not None
    assert (row[1] == "no") == (code in PERMANENT_EXITS)


@pytest.mark.parametrize("name", [field.name for field in fields(Launch)])
def test_every_setting_of_the_launch_record_is_described(name: str):
    assert re.search(rf"^\| .*`{name}`.* \|.*\|$", TEXT, re.MULTILINE)


def test_the_variables_are_named():
    assert f"`{launch.VARIABLE}`" in TEXT and f"`{launch.INITIAL_CHECKPOINT}`" in TEXT and f"`{launch.MIRROR}`" in TEXT


def test_the_example_of_a_launch_record_is_one():
    example = re.search(r"^```json\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)

    assert example is not None
    example_launch = launch.from_environment({launch.VARIABLE: example[1]})
    assert json.loads(example_launch.to_environment()[launch.VARIABLE]).items() >= json.loads(example[1]).items()
