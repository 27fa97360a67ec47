"""Measures the time from `kill -9` of a worker to the first new step where its state was in memory.

Run with `python -m bench.memory_relaunch`; prints a table and writes bench/results/memory_relaunch.json. Once the next
worker restores from memory, and once it waits until the checkpoint is written and restores that (`WAITS_FOR_DISK`); the
two take turns, with a standby of the kind `--standby`. Before each kill a copy is in memory, a checkpoint on the disk,
and the standby waits. `restored`: until the state is there; `first step`: until the first new one is done.
"""

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import harness
from bench.relaunch import recorded_events, standby_pid, until
from tests.system.harness import Daemon

ROOT = Path(__file__).resolve().parent.parent
WAYS = {"from memory": "", "from the disk": "1"}

JOB = """
[program:job]
entrypoint = bench.memory_relaunch_job:described
python = {python}
directory = {root}
checkpoint_dir = {folder}/job
checkpoint_interval = 1000000 steps
checkpoint_keep = 2
memory_checkpoint = auto
replicas = 1
standby = {standby}
startretries = 1000
environment = STORY="{folder}/story",SIZE_MB="{size}",WAITS_FOR_DISK="{waits}",PYTHONPATH="{root}"
stdout_logfile = {folder}/job.log
redirect_stderr = true
"""


def measured(size: float, waits: str, standby: str, kills: int, folder: Path) -> list[tuple[float, float]]:
    """Of each kill: seconds until the state was restored, and until the first new step."""
    text = JOB.format(python=sys.executable, root=ROOT, folder=folder, standby=standby, size=size, waits=waits)
    times = []
    with Daemon(folder, text, scripts_have=None) as daemon:

        def job() -> dict[str, object]:
            return dict(daemon.status("job")["job"])

        for number in range(kills):
            attempt = number + 1
            until(lambda at=attempt: job()["attempt"] == at and job()["memory_step"], "a copy in memory", folder)
            if standby != "off":
                until(lambda: standby_pid(folder), "its standby", folder)
            daemon.call("checkpoint", name="job")
            copied = job()["memory_step"]
            until(lambda before=copied: job()["memory_step"] != before, "a newer copy", folder)
            time.sleep(0.3)  # its hash
            pid, killed_at = int(daemon.status("job")["pid"]), time.monotonic()
            os.kill(pid, signal.SIGKILL)
            until(
                lambda at=killed_at: [e for e in recorded_events(folder) if e.what == "step" and e.at > at + 0.1],
                "it",
                folder,
            )
            first = next(e for e in recorded_events(folder) if e.what == "step" and e.at > killed_at and e.pid != pid)
            restored = [e for e in recorded_events(folder) if e.what == "restored" and e.pid == first.pid][-1]
            times.append((restored.at - killed_at, first.at - killed_at))
        lines = [json.loads(line) for line in (folder / "daemon.log").read_text().splitlines()]
    ways = [bool(line["from_memory"]) for line in lines if line["event"] == "worker.restored"][1 : kills + 1]
    print(f"{size:g} MB, restored from memory: {ways.count(True)} of {len(ways)}; {times}", flush=True)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=float, nargs="+", default=[100, 400])
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--standby", default="hot")
    options = parser.parse_args()
    results: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for size in options.sizes:
        by_way: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        for _ in range(options.rounds):
            for way, waits in WAYS.items():
                with tempfile.TemporaryDirectory(prefix="stepkeeper-bench-") as folder:
                    by_way[way] += measured(size, waits, options.standby, options.kills, Path(folder))
        results[f"{size:g}"] = by_way
    table = Table("state", "way", "restored, s", "first step, s")
    for name, ways in results.items():
        for way, times in ways.items():
            table.add_row(f"{name} MB", way, *(_spread([pair[part] for pair in times]) for part in (0, 1)))
    Console(width=140).print(table)
    harness.write("memory_relaunch", {"options": vars(options), "seconds": results})


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
