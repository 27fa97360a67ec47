"""The daemon tells of steps that gave other bits when they were trained a second time."""

import http.client
import socket
import sys
from pathlib import Path

import pytest

from supervisor.protocol.wire.exits import WorkerExit
from tests import forked
from tests.places import ROOT
from tests.reading import records
from tests.system.harness import Daemon

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
CHILD = ROOT / "tests" / "worker" / "children" / "replaying.py"


def section(name: str, folder: Path, keys: str, *options: str) -> str:
    command = " ".join([sys.executable, str(CHILD), "tensorflow", str(folder / name), "100000", *options])
    return (
        f"[program:{name}]\ncommand={command}\ncheckpoint_dir={folder}/{name}\ncheckpoint_interval=5 steps\n"
        f"environment=PYTHONPATH={ROOT}\ndeterministic=true\nreplay=50%\nstandby=off\n{keys}\n"
    )


def metrics(daemon: Daemon, name: str) -> dict[str, float]:
    """The metrics of one program, by name."""
    connection = http.client.HTTPConnection("localhost", timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.connect(str(daemon.socket))
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return {line.partition("{")[0]: float(line.split()[-1]) for line in lines if f'program="{name}"' in line}


def test_a_difference_is_logged_counted_and_told(tmp_path: Path) -> None:
    hook = tmp_path / "hook.sh"
    hook.write_text(f"#!/bin/sh\ncat >> {tmp_path}/told\n")
    hook.chmod(0o755)
    spoiled = section("spoiled", tmp_path, f"on_replay_difference=stop\nhook_replay_difference={hook}", "flip=weight")
    with Daemon(tmp_path, spoiled + section("sound", tmp_path, ""), scripts_have=forked.TENSORFLOW) as daemon:
        daemon.until(lambda: daemon.status("spoiled")["state"] == "FAILED", "it is given up", 200)
        daemon.until(lambda: records(tmp_path / "told"), "the hook is told")
        daemon.until(lambda: metrics(daemon, "sound")["stepkeeper_replayed_steps_total"] >= 5, "it replays", 200)
        listed = daemon.until(
            lambda: [
                checkpoint
                for checkpoint in daemon.call("checkpoints", name="sound")["checkpoints"]
                if checkpoint["replayed"]
            ],
            "a checkpoint is marked",
        )

        (told,) = records(tmp_path / "told")
        assert (told["event"], told["program"]) == ("replay_difference", "spoiled")
        assert "gave other bits" in told["text"]
        assert str(int(WorkerExit.NOT_REPEATABLE)) in daemon.status("spoiled")["reason"]
        assert metrics(daemon, "spoiled")["stepkeeper_replay_differences_total"] == 1
        assert metrics(daemon, "sound")["stepkeeper_replay_differences_total"] == 0
        assert "replay.differed" in daemon.events("replay.differed")
        assert listed[0]["valid"]
