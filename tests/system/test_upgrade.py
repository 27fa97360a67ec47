"""A daemon of this version takes over what one of an earlier version left: files, and workers that go on meanwhile."""

import hashlib
import hmac
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from supervisor.config import load_config
from supervisor.host.ledger.schema import SCHEMA
from supervisor.protocol import layout
from supervisor.protocol.wire.lines import encode_message
from supervisor.protocol.wire.messages import Go
from supervisor.runner.attempt.launching import config_digest
from tests.system.harness import PATIENCE_S, TRAINER, Daemon, Refused, job
from tests.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

VERSIONS = Path(__file__).parents[1] / "host" / "ledger" / "versions"
V12 = VERSIONS / "v12"
LAUNCHED = Path(__file__).parents[1] / "protocol" / "versions" / "v1" / "environment.json"
WAS_IN = "/tmp/upgrade/v12"
SLOW = {"STEPS": 100_000, "STEP_S": 0.02, "EVERY": 20}


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes to end after the test."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def start_as_v12_did(folder: Path, digest: str) -> subprocess.Popen[bytes]:
    """The worker of the job `goes-on` as that version started it, with its launch record and its mark; it trains."""
    state = folder / "state"
    pipes = state / "run" / "goes-on" / "a1"
    pipes.mkdir(parents=True)
    state.chmod(0o711)
    for name in (layout.TO_WORKER, layout.FROM_WORKER):
        os.mkfifo(pipes / name, 0o600)
    key = os.urandom(32)
    (state / "identity").write_bytes(key)
    (state / "identity").chmod(0o600)
    environment = json.loads(LAUNCHED.read_text().replace(WAS_IN, str(folder)))
    mark, _, signature = environment["SUPERVISOR_ATTEMPT"].rpartition(":")
    signed = hmac.digest(key, os.fsencode(mark), hashlib.sha256)[:16].hex()
    assert len(signed) == len(signature)
    environment |= {"SUPERVISOR_ATTEMPT": f"{mark}:{signed}", "SUPERVISOR_CONFIGURATION": digest}
    variables = {name: str(value) for name, value in SLOW.items()}
    to_worker = os.open(pipes / layout.TO_WORKER, os.O_RDWR)
    os.write(to_worker, encode_message(Go(1, None)))
    worker = subprocess.Popen(
        [sys.executable, TRAINER], env={**os.environ, **variables, **environment}, start_new_session=True
    )
    wait_until(lambda: list((folder / "goes-on").glob("step-*.a1")), "it has committed", PATIENCE_S)
    os.close(to_worker)
    return worker


def write_state_of_v12(folder: Path, worker: int) -> None:
    """The ledger and the file of what is wanted, with the attempt that goes on in their rows."""
    state = folder / "state"
    shutil.copy(V12 / "ledger.sqlite3", state)
    shutil.copy(V12 / "wanted.json", state)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    ticks = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[19])
    with closing(sqlite3.connect(state / "ledger.sqlite3")) as old, old:
        sql = "UPDATE attempts SET pid = ?, start_time = ?, started_at = ?, boot_id = ?, to_step = 20 WHERE program = ?"
        old.execute(sql, (worker, ticks, time.time(), boot, "goes-on"))
        old.execute("UPDATE memories SET content = replace(content, ?, ?)", (WAS_IN, str(folder)))
        (text,) = old.execute("SELECT content FROM memories WHERE program = 'goes-on'").fetchone()
        memory = json.loads(text)
        known = [f"{folder}/goes-on", "step-0000000020.a1", 20, memory["known"][3]]
        memory |= {"saved": 20, "best_step": 20, "known": known}
        old.execute("UPDATE memories SET content = ? WHERE program = 'goes-on'", (json.dumps(memory),))


def test_an_upgrade_keeps_worker_attempt_history_and_what_was_learned(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
):
    off = "autostart=false"
    sections = "".join(
        [
            job("goes-on", tmp_path, **SLOW),
            job("crashes", tmp_path, off, **SLOW),
            job("suspect", tmp_path, off, **SLOW),
            job("divided", tmp_path, f"{off}\non_oom=microbatch", **SLOW),
            job("stopped", tmp_path, off, **SLOW),
            "[program:taken-out]\ncommand=/bin/sleep 100000\n",
        ]
    )
    expected: dict[str, Any] = json.loads((V12 / "read_by_v12.json").read_text())
    daemon = Daemon(tmp_path, sections)
    digest = config_digest(load_config(daemon.conf, os.environ).programs["goes-on"])
    started.append(start_as_v12_did(tmp_path, digest))
    worker = started[0].pid
    write_state_of_v12(tmp_path, worker)

    with daemon:
        after = daemon.until_state("goes-on", "RUNNING")
        assert (after["pid"], after["job"]["attempt"]) == (worker, 1)
        assert daemon.until_step("goes-on", after["job"]["step"] + 20)["pid"] == worker
        assert daemon.events("ledger.migrated", "worker.adopted", "ledger.lost", "ledger.set_aside") == [
            "ledger.migrated",
            "worker.adopted",
        ]
        assert daemon.call("status")["ledger_error"] is None
        assert "taken-out" not in [program["name"] for program in daemon.call("status")["programs"]]
        for name in ("crashes", "suspect", "divided", "stopped"):
            attempts = daemon.call("history", name=name)["attempts"]
            ended = [attempt for attempt in expected["history"][name] if attempt["cause"] is not None]
            kept = [(each["attempt"], each["cause"], each["from_step"], each["text"]) for each in ended]
            found = [
                (attempt["attempt"], attempt["cause"], attempt["from_step"], attempt["text"]) for attempt in attempts
            ]
            assert found[: len(kept)] == kept
            assert (
                daemon.status(name)["job"]["newest"]["step"] == expected["job_states"][name]["facts"]["known"]["step"]
            )
        with pytest.raises(Refused, match=r"step 46 \(step-0000000046.a1\) was committed in .*/stopped"):
            daemon.call("start", name="stopped")  # the fixture has no checkpoints: so it is known that they are gone

        os.kill(worker, signal.SIGKILL)
        daemon.until(lambda: daemon.status("goes-on")["pid"] not in (None, worker), "it is started again")
        assert started[0].wait(PATIENCE_S) == -signal.SIGKILL
        again = daemon.until_step("goes-on", after["job"]["step"])["job"]
        assert (again["attempt"], again["restored"] is not None) == (2, True)


@pytest.mark.parametrize("changed", ["ledger.sqlite3", "wanted.json"])
def test_a_downgrade_is_refused_with_words_and_changes_nothing(tmp_path: Path, changed: str):
    with Daemon(tmp_path, "[program:x]\ncommand=/bin/sleep 100000\n") as daemon:
        daemon.until_state("x", "RUNNING")
        daemon.call("stop", name="x")
        daemon.die()
        state = tmp_path / "state"
        if changed == "wanted.json":
            content = json.loads((state / changed).read_text())
            (state / changed).write_text(json.dumps(content | {"format": 99}))
        else:
            with closing(sqlite3.connect(state / changed)) as shell:
                shell.execute(f"PRAGMA user_version = {SCHEMA + 1}")

        def files() -> dict[str, bytes]:
            return {text: (state / text).read_bytes() for text in ("ledger.sqlite3", "wanted.json")}

        before = files()
        command = [sys.executable, "-m", "supervisor.daemon", "-n", "-c", str(daemon.conf)]

        refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

        assert refused.returncode != 0
        assert "a newer stepkeeper wrote" in refused.stderr
        assert "install that version again" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert files() == before
