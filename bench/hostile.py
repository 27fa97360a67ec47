"""A job of another user that sends random and extreme messages at full speed, beside one that trains.

Run with `python -m bench.hostile --minutes 3`. The victim trains alone and is told that the host goes away in 60 s;
then it trains beside the hostile job, and is told the same at the end. Prints how long before the deadline its last
flush was asked for in both cases, the slowest answer of `status`, what the hostile job cost root's disk and the
daemon's memory, and whether the ledger, the log and the stream of events have every commit of the victim; writes
bench/results/hostile.json, and exits with 1 if a limit is missed. As root the hostile job is another user's.
"""

import argparse
import http.client
import json
import os
import shutil
import socket
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from contextlib import closing
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

import psutil

from bench import harness, soak_hostile
from tests.places import CHILDREN
from tests.reading import records
from tests.system.harness import TRAINER, Daemon, let_others_in

DEADLINE_S = 60
HONEST_S = 20.0  # the victim's first saves
SAVE_EVERY_STEPS = 100  # of 0.02 s: a commit in about four seconds, half of which is the save
LOOK_EVERY_S = 0.2
SETTLE_SHARE = 1 / 3  # of the time: bursts that are allowed once are over; growth is measured from then on
ASK_WITHIN, STATUS_S, DISK_MB_HOUR, MEMORY_MB = 0.05, 0.5, 20.0, 20.0


@dataclass
class Outcome:
    """What one run showed. `lead_s`: from the last flush's order to the deadline; sizes in MB."""

    lead_s: float = 0.0
    status_s: list[float] = field(default_factory=list)
    disk_mb: float = 0.0
    disk_mb_hour: float = 0.0
    memory_mb: float = 0.0
    cpu_share: float = 0.0
    load: float = 0.0
    missing: list[str] = field(default_factory=list)
    described: str = ""
    attempts: int = 0


class Site:
    """A folder with a daemon's configuration."""

    def __init__(self, folder: Path, is_hostile: bool, seed: int) -> None:
        self.folder = folder
        let_others_in(folder)
        python = soak_hostile.python_of_user()
        user = "" if python is None else f"user={soak_hostile.USER}\n"
        sections = self._section("victim", f"{sys.executable} {TRAINER}", VICTIM, "on_notice=train\nnotice_margin=5")
        if is_hostile:
            (folder / "hostile").mkdir()
            if python is not None:
                shutil.chown(folder / "hostile", soak_hostile.USER)
            lies = f'LIES="random",SEED="{seed}",PYTHONPATH="{soak_hostile.python_path()}"'
            keys = f"{user}directory=/\nstopwaitsecs=2\nflush_timeout=5\nhang_timeout=2592000"
            sections += self._section("hostile", f"{python or sys.executable} {CHILDREN / 'liar.py'}", lies, keys)
        self.daemon = Daemon(folder, sections, scripts_have=None)

    def _section(self, name: str, command: str, variables: str, keys: str) -> str:
        where = f"checkpoint_dir={self.folder}/{name}\nstandby=off\nautorestart=true\n"
        return f"[program:{name}]\ncommand={command}\nenvironment={variables}\n{where}{keys}\n"

    def roots_bytes(self) -> int:
        """Bytes of the ledger and the logs; the checkpoints are the jobs' own."""
        files = [*(self.folder / "state").rglob("*"), *self.folder.glob("daemon.log*")]
        return sum(file.stat().st_blocks * 512 for file in files if file.is_file())


VICTIM = f'STEPS="1000000000",STEP_S="0.02",EVERY="{SAVE_EVERY_STEPS}",FLUSH_S="2"'


def measured(folder: Path, is_hostile: bool, lasts_s: float, seed: int) -> Outcome:
    """Trains for so long, then announces the end of the host."""
    outcome, site = Outcome(), Site(folder, is_hostile, seed)
    commits: list[int] = []
    with site.daemon as daemon:
        assert daemon.process is not None
        threading.Thread(target=_follow, args=(daemon, commits), daemon=True).start()
        daemon.until_step("victim", SAVE_EVERY_STEPS)
        process = psutil.Process(daemon.process.pid)
        memory, used_s = process.memory_info().rss, sum(process.cpu_times()[:2])
        began_at, settled = time.monotonic(), (time.monotonic(), site.roots_bytes())
        first_bytes = settled[1]
        while time.monotonic() - began_at < lasts_s:
            outcome.status_s.append(_status_s(daemon))
            if time.monotonic() - began_at < SETTLE_SHARE * lasts_s:
                settled = time.monotonic(), site.roots_bytes()
            time.sleep(LOOK_EVERY_S)
        grown = site.roots_bytes() - settled[1]
        outcome.disk_mb = (site.roots_bytes() - first_bytes) / 1e6
        outcome.disk_mb_hour = grown / 1e6 / max(1e-9, time.monotonic() - settled[0]) * 3600
        outcome.memory_mb = (process.memory_info().rss - memory) / 1e6
        outcome.cpu_share = (sum(process.cpu_times()[:2]) - used_s) / (time.monotonic() - began_at)
        outcome.load = os.getloadavg()[0]
        if is_hostile:
            outcome.attempts = daemon.status("hostile")["job"]["attempt"]
            outcome.described = str(daemon.status("hostile")["description"])
        deadline_at = time.time() + DEADLINE_S
        daemon.call("drill", name="all", in_s=DEADLINE_S)
        daemon.until(lambda: len(_asked_at(folder)) >= 2, "the last flush was asked for", 2 * DEADLINE_S)
        outcome.lead_s = deadline_at - _asked_at(folder)[-1]
        daemon.call("drill", name="all", withdraw=True)
        daemon.call("stop", name="victim")
        time.sleep(1.0)  # the follower's last event
    outcome.missing = _missing(folder, commits)
    return outcome


def _status_s(daemon: Daemon) -> float:
    began = time.monotonic()
    daemon.call("status")
    return time.monotonic() - began


def _asked_at(folder: Path) -> list[float]:
    """When the victim was asked to save because of the notice (Unix time)."""
    return [
        datetime.fromisoformat(record["timestamp"]).timestamp()
        for record in records(folder / "daemon.log")
        if record["event"] == "flush.asked" and record["program"] == "victim" and record["reason"] == "notice"
    ]


def _follow(daemon: Daemon, commits: list[int]) -> None:
    """Collects the steps of the victim's commits from the stream of events, until the daemon ends."""
    connection = http.client.HTTPConnection("localhost", timeout=3600)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.connect(str(daemon.socket))
    connection.request("GET", "/api/v1/events?since=start")
    for line in connection.getresponse():
        event = json.loads(line) if line.strip() else {}
        if event.get("event") == "CHECKPOINT_COMMITTED" and event.get("program") == "victim":
            commits.append(event["step"])


def _missing(folder: Path, events: list[int]) -> list[str]:
    """Which of the victim's commits lack a row, a line or an event."""
    on_disk = {int(path.name[5:15]) for path in (folder / "victim").glob("step-*") if not path.name.endswith("partial")}
    lines = {
        record["step"]
        for record in records(folder / "daemon.log")
        if record["event"] == "checkpoint.committed" and record["program"] == "victim"
    }
    with closing(sqlite3.connect(folder / "state" / "ledger.sqlite3")) as ledger:
        rows = {step for (step,) in ledger.execute("SELECT step FROM checkpoints WHERE program = 'victim'")}
    traces = {"row in the ledger": rows, "line in the log": lines, "event": set(events)}
    return [f"step {step} has no {what}" for what, steps in traces.items() for step in sorted(on_disk - steps)]


def judged(alone: Outcome, beside: Outcome) -> list[tuple[str, str, bool]]:
    """Each limit: what it is about, what was seen, and whether it is kept."""
    difference = abs(beside.lead_s - alone.lead_s) / alone.lead_s
    slowest_s = max(beside.status_s)
    return [
        (
            "last flush before the deadline",
            f"{alone.lead_s:.2f} s alone, {beside.lead_s:.2f} s beside it ({difference:.1%})",
            difference <= ASK_WITHIN,
        ),
        (
            "status",
            f"median {1000 * statistics.median(beside.status_s):.0f} ms, slowest {1000 * slowest_s:.0f} ms of "
            f"{len(beside.status_s)} (alone {1000 * max(alone.status_s):.0f} ms)",
            slowest_s <= STATUS_S,
        ),
        (
            "root's disk",
            f"{beside.disk_mb:.1f} MB in all, then {beside.disk_mb_hour:.1f} MB an hour",
            beside.disk_mb_hour <= DISK_MB_HOUR and beside.disk_mb <= DISK_MB_HOUR,
        ),
        (
            "the daemon's memory",
            f"{beside.memory_mb:.1f} MB more; it used {beside.cpu_share:.0%} of a core (alone {alone.cpu_share:.0%})",
            beside.memory_mb <= MEMORY_MB,
        ),
        ("the victim's records", "; ".join(beside.missing[:3]) or "complete", not beside.missing),
    ]


def main() -> None:
    """Runs both, prints and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    outcomes = []
    for is_hostile, lasts_s in ((False, HONEST_S), (True, 60 * arguments.minutes)):
        with tempfile.TemporaryDirectory(prefix="hostile.") as folder:
            os.chmod(folder, 0o755)
            outcomes.append(measured(Path(folder), is_hostile, lasts_s, arguments.seed))
    verdicts = judged(*outcomes)
    for what, seen, is_kept in verdicts:
        sys.stdout.write(f"{'kept  ' if is_kept else 'MISSED'}  {what}: {seen}\n")
    sys.stdout.write(
        f"the hostile job is in attempt {outcomes[1].attempts}; status says: {outcomes[1].described[-400:]}\n"
    )
    harness.RESULTS.mkdir(parents=True, exist_ok=True)
    result = {"machine": harness.machine(), "alone": asdict(outcomes[0]), "beside": asdict(outcomes[1])}
    (harness.RESULTS / "hostile.json").write_text(json.dumps(result, indent=1, allow_nan=False))
    sys.exit(0 if all(is_kept for _, _, is_kept in verdicts) else 1)


if __name__ == "__main__":
    main()
