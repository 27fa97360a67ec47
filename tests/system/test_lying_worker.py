"""A worker that sends nonsense, at full speed, beside one that trains: it harms nobody but itself.

Each test is what an auditor did to a root daemon once, with the consequence that it had then.
"""

import json
import math
import sqlite3
import sys
import time
import xmlrpc.client
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.places import CHILDREN
from tests.reading import records
from tests.system.both import UnixTransport
from tests.system.harness import Daemon, job

pytestmark = pytest.mark.integration

MARGIN_S = 1
FLOOD_S = 8.0  # what it costs a daemon that lets it happen: 50 MB of ledger, and each of its logs rotated many times
NAME = "step-{n}.a1"
COMMITTED = {"type": "committed", "step": 5, "checkpoint": NAME, "size_bytes": 1, "save_s": 0.1, "stall_s": 0.0}
PROGRESS = {"type": "progress", "step": 5, "metrics": {"loss": 1.5}}


def liar(folder: Path, *lies: dict[str, Any], name: str = "liar", keys: str = "") -> str:
    """A section for a worker that tells these lies."""
    (folder / f"{name}.json").write_text(json.dumps(lies))
    return (
        f"[program:{name}]\ncommand={sys.executable} {CHILDREN / 'liar.py'}\ncheckpoint_dir={folder}/{name}\n"
        f"environment=LIES={folder}/{name}.json\nstandby=off\nstopwaitsecs=1\nflush_timeout=2\n{keys}\n"
    )


def honest(folder: Path) -> str:
    return job("victim", folder, STEPS=10**9, EVERY=100, STEP_S=0.02)


def status_of_all(daemon: Daemon) -> dict[str, dict[str, Any]]:
    return {program["name"]: program for program in daemon.call("status")["programs"]}


def test_no_time_ago_hides_the_status_of_all_others(tmp_path: Path):
    """`ago_s: 1e14` raised OverflowError in `status`, and in Supervisor's getAllProcessInfo."""
    with Daemon(tmp_path, honest(tmp_path) + liar(tmp_path, {**COMMITTED, "ago_s": 1e14})) as daemon:
        daemon.until_step("victim", 5)
        daemon.until(lambda: "sends nonsense" in daemon.status("liar")["description"], "it is told that it lies")
        found = status_of_all(daemon)
        with xmlrpc.client.ServerProxy("http://localhost/RPC2", UnixTransport(daemon.socket)) as proxy:
            infos: Any = proxy.supervisor.getAllProcessInfo()

        assert found["liar"]["state"] == "RUNNING", "the job goes on"
        said = "sends nonsense: committed.ago_s is 100,000,000,000,000, not 0 to 315,360,000"
        assert said in found["liar"]["description"]
        assert found["liar"]["job"]["refused"] != []
        assert "sends nonsense" not in found["victim"]["description"]
        assert {info["name"] for info in infos} == {"victim", "liar"}


NOT_FINITE = [
    {**COMMITTED, "save_s": 1.7e308},
    {**PROGRESS, "step_s": 5e-324},
    {**PROGRESS, "interval_s": 1e308},
    {**PROGRESS, "metrics": {"loss": math.inf}},
    {**PROGRESS, "step": (1 << 64) - 1},
]


@pytest.mark.slow
def test_no_number_that_is_not_finite_is_shown_now_or_by_the_next_daemon(tmp_path: Path):
    """`save_s: 1.7e308` put Infinity into JSON, from the ledger after restarts too; `step_s: 5e-324` showed `inf`."""
    sections = honest(tmp_path) + liar(tmp_path, *NOT_FINITE)
    with Daemon(tmp_path, sections) as daemon:
        daemon.until_step("victim", 5)
        daemon.until(lambda: "sends nonsense" in daemon.status("liar")["description"], "it is told that it lies")
        _assert_all_finite(daemon)
    with closing(sqlite3.connect(tmp_path / "state" / "ledger.sqlite3")) as ledger:  # as an earlier version left it
        ledger.execute("INSERT OR REPLACE INTO checkpoints VALUES ('liar', 1, 'x', 5, 1, 1.7e308, 9e999, 1.0)")
        ledger.execute("INSERT OR REPLACE INTO longest_silences VALUES ('liar', 'step', 9e999)")
        ledger.execute("UPDATE accounts SET spent_s = '{\"training\": Infinity}' WHERE program = 'liar'")
        ledger.commit()
    with Daemon(tmp_path, sections) as daemon:
        daemon.until_step("victim", 5)
        _assert_all_finite(daemon)


def _assert_all_finite(daemon: Daemon) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} in an answer")

    for command, arguments in (
        ("status", {}), ("history", {"name": "liar"}), ("goodput", {"name": "liar"}), ("series", {"name": "liar"}),
    ):  # fmt: skip
        text = json.dumps(daemon.call(command, **arguments))
        json.loads(text, parse_constant=refuse)
        assert "inf" not in json.loads(text).get("description", "")
    for program in daemon.call("status")["programs"]:
        assert " inf " not in program["description"] and "0" * 50 not in program["description"]


@pytest.mark.slow
def test_a_loop_of_commits_fills_neither_the_disk_nor_the_queue(tmp_path: Path):
    """Each with a name of its own: the ledger grew by 0.4 GB a minute, and a stop could not be recorded any more."""
    flood = liar(tmp_path, COMMITTED, {**COMMITTED, "checkpoint": "x" * 60_000})
    with Daemon(tmp_path, honest(tmp_path) + flood) as daemon:
        assert daemon.process is not None
        daemon.until_step("victim", 5)
        daemon.until(lambda: "sends nonsense" in daemon.status("liar")["description"], "it is told that it lies")
        before = psutil.Process(daemon.process.pid).memory_info().rss
        ends_at, slowest_s = time.monotonic() + FLOOD_S, 0.0
        while time.monotonic() < ends_at:
            began = time.monotonic()
            daemon.call("status")
            slowest_s = max(slowest_s, time.monotonic() - began)
            time.sleep(0.1)
        grown = psutil.Process(daemon.process.pid).memory_info().rss - before
        daemon.call("stop", name="victim")
        answer = daemon.call("status")

        assert answer["ledger_error"] is None
        assert grown < 20 << 20
        assert slowest_s < 2.0  # 0.5 s where nothing else runs: `python -m bench.hostile`
    commits = [record for record in records(tmp_path / "daemon.log") if record["event"] == "checkpoint.committed"]
    victims = {commit["step"] for commit in commits if commit["program"] == "victim"}
    with closing(sqlite3.connect(tmp_path / "state" / "ledger.sqlite3")) as ledger:
        rows = dict(ledger.execute("SELECT program, count(*) FROM checkpoints GROUP BY program"))
        recorded = {step for (step,) in ledger.execute("SELECT step FROM checkpoints WHERE program = 'victim'")}
    on_disk = {int(path.name[5:15]) for path in (tmp_path / "victim").glob("step-*")}
    assert recorded == on_disk == victims
    assert rows["liar"] < 2000
    assert (tmp_path / "state" / "ledger.sqlite3").stat().st_size < 4 << 20


@pytest.mark.slow
def test_no_job_erases_what_operators_asked(tmp_path: Path):
    """60,000 characters of `save-failed`, without end: the rotated logs held no `change.asked` any more."""
    sections = honest(tmp_path)
    for size in (4000, 60_000):
        sections += liar(tmp_path, {"type": "save-failed", "step": 5, "error": "x" * size}, name=f"liar{size}")
    with Daemon(tmp_path, sections, "logfile_maxbytes=1MB\nlogfile_backups=3") as daemon:
        daemon.until_step("victim", 5)
        daemon.call("stop", name="victim")
        time.sleep(FLOOD_S)
        described = daemon.status("liar4000")["description"]
    logs = "".join(path.read_text() for path in tmp_path.glob("daemon.log*"))
    assert "left out of the daemon's log" in described
    assert sum(path.stat().st_size for path in tmp_path.glob("daemon.log*")) < 2 << 20
    assert '"change.asked"' in logs
    assert [record["command"] for record in records(tmp_path / "state" / "changes.log")] == ["stop"]


def lead_s(folder: Path, beside: str, pause_s: float) -> float:
    """How long before its host goes a job is asked to save, beside others. It says of each of its saves that it took as
    long, however busy the machine is; there is more than that between two of them."""
    victim = job(
        "victim", folder, f"on_notice=train\nnotice_margin={MARGIN_S}", STEPS=10**9, EVERY=300, STEP_S=0.02, SAID_S=5
    )
    with Daemon(folder, victim + beside, environment={"PAUSE_S": str(pause_s)}) as daemon:
        daemon.until(lambda: _commits(daemon) >= 2, "it has saved")
        daemon.call("drill", name="victim", in_s=12)
        [notice] = daemon.call("notices")["notices"]
        daemon.until(lambda: len(_asked_at(daemon)) >= 2, "the last flush was asked for")
        return float(notice["deadline_wall_at"]) - _asked_at(daemon)[1] - MARGIN_S


@pytest.mark.slow
def test_no_claim_moves_the_last_flush_of_another_job(tmp_path: Path):
    """`save_s: 1e18` had the victim asked 1.2 s before the host went instead of 44 s; credible lies halved that."""
    folders = [tmp_path / name for name in ("alone", "credible", "incredible")]
    for folder in folders:
        folder.mkdir()
    lies = [
        liar(folder, {**COMMITTED, "save_s": claim_s, "size_bytes": 10**12}, PROGRESS)
        for folder, claim_s in zip(folders[1:], (1000.0, 1e18), strict=True)
    ]
    with ThreadPoolExecutor() as at_once:  # each mostly waits for its deadline
        alone_s, *beside_liars_s = at_once.map(lead_s, folders, ("", *lies), (0.0, 1.0, 0.0))

    assert beside_liars_s == pytest.approx([alone_s] * 2, rel=0.15)


def _commits(daemon: Daemon) -> int:
    found = records(daemon.folder / "daemon.log")
    return sum(each["event"] == "checkpoint.committed" and each["program"] == "victim" for each in found)


def _asked_at(daemon: Daemon) -> list[float]:
    """When the victim was asked to save because of the notice (Unix time)."""
    found = [record for record in records(daemon.folder / "daemon.log") if record["event"] == "flush.asked"]
    return [timestamp(each) for each in found if each["program"] == "victim" and each["reason"] == "notice"]


def timestamp(record: dict[str, Any]) -> float:
    """Unix time."""
    return datetime.fromisoformat(record["timestamp"]).timestamp()
