"""Fixtures: control pipes as a daemon makes them, and TensorFlow's devices for all tests that use it."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.protocol.wire.launch import Launch
from tests.worker.daemon_end import DaemonEnd
from worker.process.startup import begin_attempt


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonEnd]:
    end = DaemonEnd(tmp_path / "run")
    yield end
    end.close()


@pytest.fixture(autouse=True)
def _devices_first(request: pytest.FixtureRequest) -> None:
    """Configures TensorFlow's devices before its first use by any test."""
    if request.node.get_closest_marker("tensorflow") is not None:
        request.getfixturevalue("two_replicas")


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Launch], None]]:
    """Makes this process an attempt, as `import worker` does in a new one."""

    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    channels = []

    def begin(launch: Launch) -> None:
        for name, value in launch.to_environment().items():
            monkeypatch.setenv(name, value)
        begun = begin_attempt()
        if begun.channel is not None:
            channels.append(begun.channel)

    yield begin
    for channel in channels:
        channel.close()
    monkeypatch.undo()
    begin_attempt()
