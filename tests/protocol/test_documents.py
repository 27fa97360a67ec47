"""docs/control-pipe.md is held to the code."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from supervisor.protocol import launch
from supervisor.protocol.checkpoints.retention import RetentionPolicy
from supervisor.protocol.exit_codes import PERMANENT, WorkerExit
from supervisor.protocol.messages import TYPES
from tests.places import ROOT

TEXT = (ROOT / "docs" / "control-pipe.md").read_text()


@pytest.mark.parametrize("name", TYPES)
def test_every_message_is_described_with_every_field(name: str):
    row = re.search(rf"^\| `{name}` \|.*$", TEXT, re.MULTILINE)

    assert row is not None
    for field in fields(TYPES[name]):
        assert field.name == "attempt" or f"`{field.name}`" in row[0]


def test_no_message_is_invented():
    described = set(re.findall(r"^\| `([a-z-]+)` \|", TEXT, re.MULTILINE))

    assert described == set(TYPES)


@pytest.mark.parametrize("code", [each for each in WorkerExit if each != WorkerExit.USER_ERROR])
def test_every_exit_code_is_described_with_whether_it_is_retried(code: WorkerExit):
    row = re.search(rf"^\| {int(code)} \|.*\| (\w*) ?\|$", TEXT, re.MULTILINE)

    assert row is not None
    assert (row[1] == "no") == (code in PERMANENT)


def test_every_launch_variable_is_described():
    whole = launch.Launch(
        control=launch.Control(1, Path("/x")),
        checkpoint_dir=Path("/y"),
        initial_checkpoint=Path("/z"),
        export_dir=Path("/e"),
        strategy="mirrored",
        replicas=2,
        deterministic=True,
        checkpoint_interval=launch.Interval(steps=1),
        on_nan="skip",
        loss_spike=20.0,
        microbatches=2,
        standby="hot",
        retention=RetentionPolicy(checkpoint_keep_every=1, best_metric="loss"),
    )

    waiting = launch.Launch(control=launch.Control(0, Path("/x")), waits_for=launch.DaemonIdentity(1, 2))

    for variable in whole.to_environment() | waiting.to_environment():
        short = variable.removeprefix("STEPKEEPER_CHECKPOINT")
        assert f"`{variable}`" in TEXT or f"`{short}`" in TEXT
