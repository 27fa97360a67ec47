"""Whether systemd shuts this host down, asked of a systemctl of the test's own; tests/systemd asks the real one."""

from pathlib import Path

import pytest

from supervisor.host.service import systemd

pytestmark = pytest.mark.integration


def answering(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """A folder that stands for that of a booted systemd, with a systemctl that does what `script` says."""
    command = folder / "systemctl"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ('[ "$*" = is-system-running ] && echo stopping; exit 1', True),
        ("echo running", False),
        ("echo degraded; exit 1", False),
        ("echo 'Failed to connect to bus: stopping' >&2; exit 1", False),
    ],
)
async def test_only_a_system_that_is_stopping_is_shut_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: bool
) -> None:
    assert await systemd.host_is_shutting_down(answering(tmp_path, monkeypatch, script), timeout_s=60.0) is expected


async def test_shutdown_does_not_wait_for_a_silent_bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not await systemd.host_is_shutting_down(answering(tmp_path, monkeypatch, "exec sleep 100"), timeout_s=0.2)


async def test_without_systemd_or_its_command_nobody_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert not await systemd.host_is_shutting_down(tmp_path)
    assert not await systemd.host_is_shutting_down(tmp_path / "absent")
