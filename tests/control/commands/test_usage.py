"""`top` on a host whose GPU driver hangs."""

import os
from pathlib import Path

import pytest

from tests.system.harness import Daemon

pytestmark = pytest.mark.integration

HANGS = """import time
class NVMLError(Exception): pass
def nvmlInit(): pass
def nvmlDeviceGetCount(): time.sleep(1000)
"""


@pytest.mark.slow
def test_a_driver_that_hangs_holds_up_neither_top_nor_the_daemons_end(tmp_path: Path):
    (tmp_path / "nvml").mkdir()
    (tmp_path / "nvml" / "pynvml.py").write_text(HANGS)
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path / "nvml"), os.environ.get("PYTHONPATH", "")])}
    with Daemon(tmp_path, "[program:sleeper]\ncommand=/bin/sleep 100000\n", environment=environment) as daemon:
        pid = daemon.until_state("sleeper", "RUNNING")["pid"]

        (asked, again) = (daemon.call("top")["programs"][0] for _ in range(2))

        assert (asked["pid"], asked["processes"], asked["gpu_memory_bytes"]) == (pid, 1, None)
        assert again["memory_bytes"] > 0
        assert daemon.stop() == 0
