"""A process that the kernel holds, as one that reads from a dead file server, can't be killed: others go on."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.silent_mount import SilentMount
from tests.system.harness import Daemon, job

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture
def held_file(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("mounting a file system needs root and /dev/fuse")
    with SilentMount(tmp_path / "mount", holds_killed=True) as mount:
        yield mount.file


def test_daemon_that_leaves_waits_for_a_process_in_the_kernel_only_for_a_while(tmp_path: Path, held_file: Path):
    """The host is to shut down, and systemd waits for the daemon as long as it asks for that."""
    script = tmp_path / "reads.py"
    script.write_text(f"open({str(held_file)!r}).read()")
    held = f"[program:held]\ncommand={sys.executable} {script}\nstopwaitsecs=1\nstartsecs=0\n"
    with Daemon(tmp_path, held + job("count", tmp_path, STEPS=1_000_000)) as daemon:
        daemon.until_step("count", 3)
        pid = daemon.status("held")["pid"]
        daemon.until(lambda: Path(f"/proc/{pid}/wchan").read_text().startswith("request_wait"), "it reads")

        assert daemon.stop() == 0

        assert daemon.events("worker.unkillable") == ["worker.unkillable"], "it is said"
        os.kill(pid, 0)
        assert daemon.events("checkpoint.committed"), "the others were saved"
