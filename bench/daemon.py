"""Measures what the daemon costs and how fast it reacts, compared with PyPI's Supervisor.

Run with `python -m bench.daemon`. Prints a table and writes bench/results/daemon.json. Figures: from SIGKILL of a
program to the existence of the next process (seen from outside, in /proc, for both alike); CPU, wake-ups and memory of
an idle daemon with one running program. Three rounds each, in turn.
"""

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import harness, peer

SETTLE_S = 2.5  # both count a program as started after startsecs = 1; Supervisor looks once a second
BEGUN_S = 10.0  # what a daemon does only once, after its start, is not what an idle one costs

CONFIGURATION = """
[supervisord]
nodaemon = true
logfile = {folder}/daemon.log
pidfile = {folder}/daemon.pid
{extra}
[unix_http_server]
file = {folder}/s.sock
[supervisorctl]
serverurl = unix://{folder}/s.sock
[program:sleeper]
command = /bin/sleep 100000
autorestart = true
stdout_logfile = NONE
stderr_logfile = NONE
{sections}
"""


@dataclass(frozen=True)
class System:
    name: str
    command: tuple[str, ...]
    extra: str = ""
    sections: str = ""


@dataclass
class Figures:
    respawn_ms: list[float]
    idle_cpu_percent: list[float]
    wakeups_per_s: list[float]
    rss_mib: list[float]


def systems() -> list[System]:
    """stepkeeper and the peer; the peer is installed on first use."""
    ours = (sys.executable, "-m", "supervisor.daemon")
    theirs = (str(peer.binaries() / "supervisord"), "-n")
    return [
        System("stepkeeper", ours, "state_dir = {folder}/state"),
        System(peer.SUPERVISOR.name, theirs),
    ]


@contextlib.contextmanager
def running(system: System) -> Iterator[int]:
    """The daemon's pid, while it runs with one started program."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bench.conf")
        path.write_text(
            CONFIGURATION.format(folder=folder, extra=system.extra.format(folder=folder), sections=system.sections)
        )
        daemon = subprocess.Popen(
            [*system.command, "-c", str(path)], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            wait_for_child(daemon.pid, None)
            time.sleep(SETTLE_S)
            yield daemon.pid
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(30)


def children(pid: int) -> list[int]:
    """The pids of the direct children of all threads."""
    pids: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            pids += map(int, (thread / "children").read_text().split())
    return pids


def wait_for_child(daemon: int, old: int | None) -> int:
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        for pid in children(daemon):
            if pid != old:
                return pid
    raise SystemExit("no child appeared within 15 s")


def measure_respawn(daemon: int, repeats: int) -> list[float]:
    """Milliseconds from SIGKILL to a new process, `repeats` times, each after the program counts as started."""
    times = []
    for _ in range(repeats):
        (old,) = children(daemon)
        began = time.perf_counter()
        os.kill(old, signal.SIGKILL)
        wait_for_child(daemon, old)
        times.append((time.perf_counter() - began) * 1000)
        time.sleep(SETTLE_S)
    return times


def cost(pid: int) -> tuple[float, int, float]:
    """CPU seconds so far, wake-ups so far (voluntary context switches of all threads), resident MiB.

    CPU as the scheduler counts it, in nanoseconds: what /proc/PID/stat has is counted in ticks of 10 ms.
    """
    cpu, wakeups, resident = 0.0, 0, 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        cpu += int((thread / "schedstat").read_text().split()[0]) / 1e9
        for line in (thread / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                wakeups += int(line.split()[1])
            elif line.startswith("VmRSS"):
                resident = int(line.split()[1])
    return cpu, wakeups, resident / 1024


def measure(system: System, figures: Figures, repeats: int, idle_s: float) -> None:
    with running(system) as daemon:
        time.sleep(BEGUN_S)
        cpu, wakeups, _ = cost(daemon)
        time.sleep(idle_s)
        cpu_after, wakeups_after, resident = cost(daemon)
        figures.idle_cpu_percent.append(100 * (cpu_after - cpu) / idle_s)
        figures.wakeups_per_s.append((wakeups_after - wakeups) / idle_s)
        figures.rss_mib.append(resident)
        figures.respawn_ms += measure_respawn(daemon, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--repeats", type=int, default=3, help="kills per round; with more than 3, restarts are delayed"
    )
    parser.add_argument("--idle", type=float, default=20.0, help="idle seconds per round")
    options = parser.parse_args()
    harness.compiled()
    results = {system: Figures([], [], [], []) for system in systems()}
    for _ in range(options.rounds):
        for system, figures in results.items():
            measure(system, figures, options.repeats, options.idle)
    report({system.name: figures for system, figures in results.items()})


def report(results: dict[str, Figures]) -> None:
    (ours, other) = results
    table = Table("figure", ours, other, "ratio of medians")
    for key, label in (
        ("respawn_ms", "kill -9 to new process, ms"),
        ("idle_cpu_percent", "idle CPU, %"),
        ("wakeups_per_s", "idle wake-ups a second"),
        ("rss_mib", "resident memory, MiB"),
    ):
        mine, theirs = getattr(results[ours], key), getattr(results[other], key)
        base = statistics.median(theirs)
        ratio = f"{statistics.median(mine) / base:.3g}" if base else "-"
        table.add_row(label, spread(mine), spread(theirs), ratio)
    Console(width=110).print(table)
    harness.write("daemon", {"results": {name: vars(figures) for name, figures in results.items()}})


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


if __name__ == "__main__":
    main()
