"""What other users can make a root daemon believe about its processes when it comes back: nothing."""

import os
import subprocess
from pathlib import Path

import pytest

from supervisor.host.processes import marks
from tests.system.harness import Daemon, let_others_in

pytestmark = [
    pytest.mark.hostile,
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="starts processes as other users, which takes root"),
]

OWNER, STRANGER = "daemon", "games"  # users that every system has


@pytest.mark.parametrize("signature", ["", f":{'0' * 32}"])
def test_forged_mark_of_another_user_kills_and_counts_nothing(signature: str, tmp_path: Path) -> None:
    let_others_in(tmp_path)
    section = f"[program:p]\ncommand=/bin/sleep 1000\nuser={OWNER}\nstartsecs=0\n"
    with Daemon(tmp_path, section) as daemon:
        pid = daemon.until_state("p", "RUNNING")["pid"]
        daemon.die()
        forged = {marks.VARIABLE: f"{tmp_path}/state:p:1000000000{signature}"}
        stranger = subprocess.Popen(["/bin/sleep", "1000"], env=forged, user=STRANGER, start_new_session=True)
        try:
            daemon.start()
            found = daemon.until_state("p", "RUNNING")
            attempts = [attempt["attempt"] for attempt in daemon.call("history", name="p")["attempts"]]
            is_stranger_alive = stranger.poll() is None
        finally:
            stranger.kill()
            stranger.wait()

    assert (found["pid"], attempts) == (pid, [1])
    assert is_stranger_alive


def test_worker_that_cleared_its_environment_is_adopted(tmp_path: Path) -> None:
    section = "[program:p]\ncommand=/usr/bin/env -i /bin/sleep 1000\nstartsecs=0\n"
    with Daemon(tmp_path, section) as daemon:
        pid = daemon.until_state("p", "RUNNING")["pid"]
        daemon.until(lambda: marks.read_mark(pid) is None, "it has cleared its environment")
        daemon.die()
        daemon.start()
        found = daemon.until_state("p", "RUNNING")

    assert found["pid"] == pid


def test_key_of_the_marks_is_for_the_daemon_alone(tmp_path: Path) -> None:
    with Daemon(tmp_path, "[program:p]\ncommand=/bin/sleep 1000\nstartsecs=0\n") as daemon:
        daemon.until_state("p", "RUNNING")
        mode = (tmp_path / "state" / marks.KEY_FILE).stat().st_mode

    assert mode & 0o777 == 0o600
