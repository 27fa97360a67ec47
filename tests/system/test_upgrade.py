"""A daemon of this version takes over what one of an earlier version left: files, and workers that go on meanwhile."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from supervisor.host.ledger.schema import SCHEMA
from tests.reading import alive
from tests.system.harness import Daemon, Refused, job

pytestmark = [pytest.mark.integration, pytest.mark.slow]

V12 = Path(__file__).parents[1] / "host" / "ledger" / "versions" / "v12"
WAS_IN = "/tmp/upgrade/v12"
SLOW = {"STEPS": 100_000, "STEP_S": 0.02, "EVERY": 20}
ATTEMPT = "SELECT pid, start_time, started_at, boot_id, to_step FROM attempts WHERE program = 'goes-on'"


def make_state_of_v12(state: Path, folder: Path) -> None:
    """Puts the ledger of version 12 in the place of the present one, with the attempt that goes on in its own rows."""
    with closing(sqlite3.connect(state / "ledger.sqlite3")) as present:
        (attempt,) = present.execute(ATTEMPT).fetchall()
        (checkpoint,) = present.execute("SELECT max(step), name FROM checkpoints WHERE program = 'goes-on'").fetchall()
    for path in (*state.glob("ledger.sqlite3*"), state / "wanted.json"):
        path.unlink()
    shutil.copy(V12 / "ledger.sqlite3", state)
    shutil.copy(V12 / "wanted.json", state)
    with closing(sqlite3.connect(state / "ledger.sqlite3")) as old, old:
        sql = "UPDATE attempts SET pid = ?, start_time = ?, started_at = ?, boot_id = ?, to_step = ? WHERE program = ?"
        old.execute(sql, (*attempt, "goes-on"))
        old.execute("UPDATE memories SET content = replace(content, ?, ?)", (WAS_IN, str(folder)))
        (text,) = old.execute("SELECT content FROM memories WHERE program = 'goes-on'").fetchone()
        memory = json.loads(text)
        step, name = checkpoint
        memory |= {"saved": step, "best_step": step, "known": [f"{folder}/goes-on", name, step, memory["known"][3]]}
        old.execute("UPDATE memories SET content = ? WHERE program = 'goes-on'", (json.dumps(memory),))


def test_an_upgrade_keeps_worker_attempt_history_and_what_was_learned(tmp_path: Path):
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
    with Daemon(tmp_path, sections) as daemon:
        worker = daemon.until_step("goes-on", 45)["pid"]
        daemon.die()
        make_state_of_v12(tmp_path / "state", tmp_path)

        daemon.start()

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
            ended = [each for each in expected["history"][name] if each["cause"] is not None]
            kept = [(each["attempt"], each["cause"], each["from_step"], each["text"]) for each in ended]
            found = [(each["attempt"], each["cause"], each["from_step"], each["text"]) for each in attempts]
            assert found[: len(kept)] == kept
            assert (
                daemon.status(name)["job"]["newest"]["step"] == expected["job_states"][name]["facts"]["known"]["step"]
            )
        with pytest.raises(Refused, match=r"step 46 \(step-0000000046.a1\) was committed in .*/stopped"):
            daemon.call("start", name="stopped")  # the fixture has no checkpoints: so it is known that they are gone

        os.kill(worker, signal.SIGKILL)
        daemon.until(lambda: daemon.status("goes-on")["pid"] not in (None, worker), "it is started again")
        assert not alive(worker)
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
            return {each: (state / each).read_bytes() for each in ("ledger.sqlite3", "wanted.json")}

        before = files()
        command = [sys.executable, "-m", "supervisor.daemon", "-n", "-c", str(daemon.conf)]

        refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

        assert refused.returncode != 0
        assert "a newer stepkeeper wrote" in refused.stderr
        assert "install that version again" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert files() == before
