"""Workers that hang are found by what their processes do, long before silence alone would show it; others live on."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.places import CHILDREN
from tests.silent_mount import SilentMount
from tests.system.harness import Daemon

KEYS = "hang_timeout=auto\nhang_timeout_min=600\nhang_evidence=4\nstopwaitsecs=4\nstandby=off"

SHOWS = {
    "stopped": "a signal stopped it",
    "deadlock": "no CPU time, no I/O",
    "endless_loop": "computes without end at one place (endless_loop in ",
    "dead_mount": "request_wait_answer",
    "peer_left": "waits in recvfrom (unix_stream_read_generic); that of process ",
    "stuck_data_worker": "waits in clock_nanosleep (hrtimer_nanosleep)",
    "long_sleep": "clock_nanosleep",
    "blocked_pipe": "write (",
}
"""By the way to hang: what the reason of the end says."""

ONLY_SILENT = (
    "compiling_child",
    "compiling_thread",
    "slow_read",
    "evaluation",
    "download",
    "pause_before_retry",
    "polling",
)


def section(folder: Path, silence: str, keys: str = KEYS, **environment: object) -> str:
    variables = ",".join(f'{name}="{value}"' for name, value in {"SILENCE": silence, **environment}.items())
    command = f"{sys.executable} {CHILDREN / 'hanging.py'}"
    return (
        f"[program:{silence}]\ncommand={command}\ncheckpoint_dir={folder}/{silence}\nenvironment={variables}\n{keys}\n"
    )


@pytest.fixture
def dead_file(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("mounting a file system needs root and /dev/fuse")
    with SilentMount(tmp_path / "mount") as mount:
        yield mount.file


@pytest.mark.slow
def test_each_kind_of_hang_is_found_by_evidence_and_explained(tmp_path: Path, dead_file: Path):
    programs = "".join(section(tmp_path, name, DEAD_FILE=dead_file) for name in SHOWS)
    with Daemon(tmp_path, programs) as daemon:
        for name, shows in SHOWS.items():
            ended = daemon.until_state(name, "SUCCEEDED", "FAILED", patience_s=60)

            assert ended["state"] == "SUCCEEDED", ended
            first = daemon.call("history", name=name)["attempts"][0]
            assert first["cause"] == "hang", first
            assert "after step 50" in first["text"] and shows in first["text"] and "; stacks: " in first["text"], first


@pytest.mark.slow
def test_what_is_only_silent_lives_on(tmp_path: Path):
    programs = "".join(section(tmp_path, name, LASTS_S=10) for name in ONLY_SILENT)
    with Daemon(tmp_path, programs) as daemon:
        for name in ONLY_SILENT:
            ended = daemon.until_state(name, "SUCCEEDED", "FAILED", patience_s=60)

            attempts = daemon.call("history", name=name)["attempts"]
            assert (ended["state"], len(attempts)) == ("SUCCEEDED", 1), attempts
