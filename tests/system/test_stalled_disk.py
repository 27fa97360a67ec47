"""The daemon's own disk stalls: whoever writes to it waits, and the daemon answers all the same."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.system.disks import freeze, slow_disk, thaw
from tests.system.harness import Daemon

pytestmark = pytest.mark.integration
__all__ = ["slow_disk"]

PROGRAMS = """
[program:ends]
command=/bin/sleep 1000
autorestart=false
[program:prints]
command=/bin/sh -c 'while true; do echo line; sleep 0.05; done'
"""
STALL_S = 3.0


@pytest.mark.slow
def test_end_of_a_program_waits_for_no_disk(slow_disk: Path) -> None:
    """Its pipes are removed from the state folder, its end is recorded there, and the logs are written there."""
    with Daemon(slow_disk, PROGRAMS) as daemon:
        pids = [daemon.until_state(name, "RUNNING")["pid"] for name in ("ends", "prints")]
        freeze(slow_disk)
        try:
            began = time.monotonic()
            os.kill(pids[0], signal.SIGKILL)
            slowest_s, is_over = 0.0, False
            while time.monotonic() < began + STALL_S:
                asked = time.monotonic()
                is_over = daemon.status("ends")["state"] == "EXITED"
                slowest_s = max(slowest_s, time.monotonic() - asked)
                time.sleep(0.05)  # so that the daemon is not kept busy by this
        finally:
            thaw(slow_disk)

        assert is_over
        assert slowest_s < STALL_S / 2
