"""A daemon's end to talk to, and supervisorctl as it is called."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from supervisor.ctl.main import main
from tests.ctl.daemon_end import DaemonEnd

CTL = (sys.executable, "-m", "supervisor.ctl.main")


@dataclass(frozen=True, slots=True)
class Result:
    """What came out."""

    status: int
    out: str
    err: str


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonEnd]:
    with DaemonEnd(tmp_path / "ctl.sock") as end:
        yield end


@pytest.fixture
def ctl(daemon: DaemonEnd, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    def call(*arguments: str) -> Result:
        status = main(["-s", daemon.url, *arguments])
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    return call
