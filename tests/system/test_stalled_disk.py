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
        try:  # whoever waits for the disk now does so until it thaws, which is after every answer here
            os.kill(pids[0], signal.SIGKILL)
            daemon.until_state("ends", "EXITED")
            ends_at = time.monotonic() + STALL_S
            while time.monotonic() < ends_at:
                assert daemon.status("ends")["state"] == "EXITED"
                time.sleep(0.05)  # so that the daemon is not kept busy by this
        finally:
            thaw(slow_disk)
