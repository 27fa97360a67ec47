"""Measures how soon hangs are found, and that what is only silent lives: real processes under a real daemon.

Run with `python -m bench.hangs`, as root (it mounts a file system whose server does not answer). Prints a table and
writes bench/results/hangs.json. 200 hangs of eight kinds with the least silence cut to a few seconds (--floor), some of
each kind with the real minute (--real), silences of a minute and a half that are alive (--lasts), and 1,000 simulated
hours of those (--hours).
"""

import argparse
import random
import statistics
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import harness
from bench.hangs_simulated import simulate
from tests.children import hanging
from tests.places import CHILDREN
from tests.reading import records
from tests.silent_mount import SilentMount
from tests.system.harness import Daemon

AT_ONCE = 8
MEMORY = "/dev/shm"  # when a job hung is written there: a busy disk may take seconds for it
BUSY_S = 3.0  # a machine with more processes than CPUs runs a look, or a worker's last step, later
USUAL_STEPS = 20
"""Of a job: so many of them, besides the least silence, may pass until a hang is found."""


@dataclass(frozen=True)
class Injected:
    """One job that is silent once. `name`: of its program."""

    name: str
    way: str
    step_s: float
    at: int
    lasts_s: float = 0.0


@dataclass
class Outcome:
    """What became of the jobs of one kind: seconds from the hang until it was found, and how many were not in time."""

    found_s: list[float] = field(default_factory=list)
    late: int = 0
    missed: int = 0
    killed: int = 0
    lived: int = 0


def section(job: Injected, folder: Path, marks: Path, dead_file: Path, floor: float) -> str:
    (marks / job.name).mkdir()
    variables = {
        "SILENCE": job.way,
        "AT": job.at,
        "STEP_S": job.step_s,
        "LASTS_S": job.lasts_s,
        "DEAD_FILE": dead_file,
        "MARKS": marks / job.name,
    }
    environment = ",".join(f'{name}="{value}"' for name, value in variables.items())
    return (
        f"[program:{job.name}]\ncommand={sys.executable} {CHILDREN / 'hanging.py'}\n"
        f"checkpoint_dir={folder}/{job.name}\nenvironment={environment}\nhang_evidence={floor:g}\nstopwaitsecs=4\nstandby=off\n"
    )


def run(jobs: list[Injected], floor: float, outcomes: dict[str, Outcome], limit_s: float) -> None:
    """Runs jobs side by side under one daemon."""
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory(dir=MEMORY) as marks_name:
        folder, marks = Path(name), Path(marks_name)
        with SilentMount(folder / "mount") as mount:
            programs = "".join(section(job, folder, marks, mount.file, floor) for job in jobs)
            with Daemon(folder, programs, scripts_have=None) as daemon:
                for job in jobs:
                    daemon.until_state(job.name, "SUCCEEDED", "FAILED", patience_s=limit_s)
                attempts = {job.name: daemon.call("history", name=job.name)["attempts"] for job in jobs}
                log = records(folder / "daemon.log")
        for job in jobs:
            judge(job, marks, attempts[job.name], log, floor, outcomes[job.way])


def judge(job: Injected, marks: Path, attempts: list[dict], log: list[dict], floor: float, outcome: Outcome) -> None:
    hangs = [attempt for attempt in attempts if attempt["cause"] == "hang"]
    if job.way in hanging.ONLY_SILENT:
        outcome.killed += len(hangs)
        outcome.lived += not hangs
        return
    aborted = [line for line in log if line["event"] == "worker.aborted" and line["program"] == job.name]
    if not hangs or not aborted:
        outcome.missed += 1
        return
    hung_at = float((marks / job.name / "hung").read_text())
    found_s = datetime.fromisoformat(aborted[0]["timestamp"]).timestamp() - hung_at
    outcome.found_s.append(found_s)
    outcome.late += found_s > floor + USUAL_STEPS * job.step_s + BUSY_S


def injected(count: int, chance: random.Random, prefix: str) -> list[Injected]:
    """So many hangs, of each kind as many."""
    ways, jobs = list(hanging.HANGS), []
    for number in range(count):
        step_s, at = chance.choice([0.01, 0.1, 0.3]), chance.randint(12, 40)
        jobs.append(Injected(f"{prefix}{number:03d}", ways[number % len(ways)], step_s, at))
    return jobs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--hangs", type=int, default=200, help="with a short least silence")
    parser.add_argument("--floor", type=float, default=5.0, help="the short least silence, in seconds")
    parser.add_argument("--real", type=int, default=2, help="of each kind with the least silence of a minute")
    parser.add_argument("--lasts", type=float, default=90.0, help="how long what is alive is silent, in seconds")
    parser.add_argument("--hours", type=float, default=1000.0, help="of simulated silence")
    arguments = parser.parse_args()
    chance, console = random.Random(1), Console()
    short: dict[str, Outcome] = defaultdict(Outcome)
    real: dict[str, Outcome] = defaultdict(Outcome)
    jobs = injected(arguments.hangs, chance, "short")
    for begin in range(0, len(jobs), AT_ONCE):
        run(jobs[begin : begin + AT_ONCE], arguments.floor, short, 120.0)
        console.print(f"{min(begin + AT_ONCE, len(jobs))} of {len(jobs)} hangs", highlight=False)
    if arguments.real:
        jobs = injected(arguments.real * len(hanging.HANGS), chance, "real")
        jobs += [Injected(way, way, 0.1, 20, arguments.lasts) for way in hanging.ONLY_SILENT]
        run(jobs, 60.0, real, 600.0)
    simulated = simulate(arguments.hours)
    show(console, short, real, arguments.floor)
    killed = sum(simulated.killed.values())
    console.print(
        f"simulated: {simulated.hours:.0f} hours of silence in {simulated.silences} silences, judged "
        f"{simulated.judged} times, {killed} killed",
        highlight=False,
    )
    results = {
        "short": {way: outcome.found_s for way, outcome in short.items()},
        "real": {way: outcome.found_s for way, outcome in real.items()},
        "in_time": in_time(short),
        "killed_alive": sum(outcome.killed for outcome in real.values()) + killed,
    }
    console.print(harness.write("hangs", results))


def in_time(outcomes: dict[str, Outcome]) -> float:
    """The share of hangs that were found in time."""
    in_time_count = sum(len(outcome.found_s) - outcome.late for outcome in outcomes.values())
    return in_time_count / max(1, sum(len(outcome.found_s) + outcome.missed for outcome in outcomes.values()))


def show(console: Console, short: dict[str, Outcome], real: dict[str, Outcome], floor: float) -> None:
    table = Table(title=f"Hangs found, by kind ({in_time(short):.1%} in time)")
    for column in ("kind", f"least silence {floor:g} s", "median, s", "late or missed", "a minute", "found after, s"):
        table.add_column(column)
    for way, outcome in short.items():
        slow = real.get(way, Outcome())
        median = f"{statistics.median(outcome.found_s):.1f}" if outcome.found_s else "-"
        after = ", ".join(f"{found_s:.1f}" for found_s in slow.found_s)
        table.add_row(
            way,
            f"{len(outcome.found_s)} of {len(outcome.found_s) + outcome.missed}",
            median,
            str(outcome.late + outcome.missed),
            f"{len(slow.found_s)} of {len(slow.found_s) + slow.missed}",
            after,
        )
    console.print(table)
    for way, outcome in real.items():
        if outcome.lived or outcome.killed:
            console.print(f"silent and alive, {way}: {outcome.lived} lived, {outcome.killed} killed", highlight=False)


if __name__ == "__main__":
    main()
