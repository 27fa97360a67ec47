"""Whether the daemon that a reload executes would start."""

import sys
from pathlib import Path

import pytest

from supervisor.host.service.next_daemon import NextDaemon

pytestmark = pytest.mark.integration


@pytest.fixture
def next_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NextDaemon:
    monkeypatch.setattr(sys, "argv", ["supervisord"])
    (tmp_path / "test.conf").write_text(f"[supervisord]\nstate_dir={tmp_path}/state\n")
    return NextDaemon(tmp_path / "test.conf", tmp_path / "gone")


def test_one_that_can_be_executed_and_has_a_file_would_start(next_daemon: NextDaemon):
    assert next_daemon.find_obstacle() is None


def test_a_file_that_it_can_not_use_is_an_obstacle(next_daemon: NextDaemon):
    next_daemon.configuration.write_text("[supervisord]\nloglevel=loud\n")

    assert "loglevel is 'loud'" in (next_daemon.find_obstacle() or "")


@pytest.mark.parametrize(("mode", "why"), [(None, "No such file or directory"), (0o644, "Permission denied")])
def test_an_interpreter_that_can_not_be_executed_is_one(
    next_daemon: NextDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int | None, why: str
):
    """As after an upgrade of the system, or for a daemon that became another user (`user`)."""
    python = tmp_path / "python"
    if mode is not None:
        python.touch(mode)
    monkeypatch.setattr(sys, "executable", str(python))

    assert next_daemon.find_obstacle() == f"{python}: {why}"
