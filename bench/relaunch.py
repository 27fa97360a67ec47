"""Measures the time from `kill -9` of a worker to its first new step: stepkeeper cold, warm and hot, and Supervisor.

Run with `python -m bench.relaunch` (`--kills 1 --rounds 1` for a quick try). Prints a table and writes
bench/results/relaunch.json. A script is measured as people write it (bench/relaunch_script.py), once with a
configuration that says nothing of a standby; the ready-made loop with each kind of standby.

The same network everywhere (bench/relaunch_job.py), MirroredStrategy over two logical CPU devices. The peers run under
PyPI's Supervisor with `autorestart=true` and `startsecs=0`: a loop with TensorFlow's CheckpointManager, and model.fit
with Keras' BackupAndRestore. Systems take turns; before a kill each has trained and saved, and where there is a standby
it waits. Seconds, by CLOCK_MONOTONIC of the one host:

detect   until the dead process is reaped
spawn    until the next process exists; a standby exists already: until it knows that it is the worker
import   until the job's modules are there
build    until strategy, model and optimizer are
restore  until the state of the last checkpoint is in place
first    until the first step after it is done, tracing included
total    all of it

"step" is the time of a step before the kill, with the standby waiting; "standby" is the share of a core that the
standby itself takes meanwhile.
"""

import argparse
import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psutil
from rich.console import Console
from rich.table import Table

from bench import harness, peer

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 600.0  # TensorFlow on a busy machine
LOOK_S = 0.0005
CALM_S = 5.0  # of training before a kill, with the standby waiting: what it costs training is seen there
PARTS = ("detect", "spawn", "import", "build", "restore", "first")
STEPS_BETWEEN = 45  # of training between two kills, at the default two saves

OURS = """
[supervisord]
nodaemon = true
state_dir = {folder}/state
logfile = {folder}/daemon.log
notices = off
[unix_http_server]
file = {folder}/s.sock
[supervisorctl]
serverurl = unix://{folder}/s.sock
[program:job]
{what}
directory = {root}
checkpoint_dir = {folder}/job
checkpoint_interval = {every} steps
replicas = 2
{standby}
startretries = 1000
environment = STORY="{folder}/story",WIDTH="{width}",EVERY="{every}"
stdout_logfile = {folder}/job.log
redirect_stderr = true
"""
THEIRS = """
[supervisord]
nodaemon = true
logfile = {folder}/daemon.log
pidfile = {folder}/daemon.pid
[program:job]
command = {python} -m bench.relaunch_job {kind} {folder}/job
directory = {root}
environment = STORY="{folder}/story",WIDTH="{width}",EVERY="{every}"
autorestart = true
startsecs = 0
startretries = 1000
stdout_logfile = {folder}/job.log
redirect_stderr = true
"""


ENTRYPOINT = f"entrypoint = bench.relaunch_job:described\npython = {sys.executable}"
SCRIPT = f"command = {sys.executable} bench/relaunch_script.py"


@dataclass(frozen=True)
class System:
    """`kind`: of a standby of ours (empty: the configuration says nothing), or the peer's loop."""

    name: str
    kind: str
    is_ours: bool
    what: str = ENTRYPOINT

    @property
    def has_standby(self) -> bool:
        return self.is_ours and self.kind != "off"


SYSTEMS = (
    System("stepkeeper, a script, nothing configured", "", True, SCRIPT),
    System("stepkeeper, a script, cold", "off", True, SCRIPT),
    System("stepkeeper, cold", "off", True),
    System("stepkeeper, warm", "warm", True),
    System("stepkeeper, hot", "hot", True),
    System("Supervisor, CheckpointManager", "manager", False),
    System("Supervisor, BackupAndRestore", "backup", False),
)
REFERENCE = "Supervisor, CheckpointManager"
TARGETS = {
    "stepkeeper, a script, nothing configured": 0.4,
    "stepkeeper, a script, cold": 0.7,
    "stepkeeper, cold": 0.7,
    "stepkeeper, warm": 0.4,
    "stepkeeper, hot": 0.08,
}
REACTION_MS = 10.0


@dataclass(frozen=True)
class Happening:
    at: float
    pid: int
    what: str
    number: int


@dataclass
class Figures:
    """One entry for each kill: the seconds of each part, the milliseconds of a step before the kill, and what the
    waiting standby took of a core meanwhile, in percent."""

    parts: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in (*PARTS, "total")})
    step_ms: list[float] = field(default_factory=list)
    standby_percent: list[float] = field(default_factory=list)

    def add(self, seconds: dict[str, float], step_ms: float, standby_percent: float | None) -> None:
        for name, spent_s in seconds.items():
            self.parts[name].append(spent_s)
        self.parts["total"].append(sum(seconds.values()))
        self.step_ms.append(step_ms)
        if standby_percent is not None:
            self.standby_percent.append(standby_percent)


def recorded_events(folder: Path) -> list[Happening]:
    """The events that all processes of the job have recorded so far."""
    try:
        lines = (folder / "story").read_text().splitlines()
    except FileNotFoundError:
        return []
    records = (line.split() for line in lines if line.count(" ") == 3)
    return [Happening(float(at), int(pid), what, int(number)) for at, pid, what, number in records]


@contextlib.contextmanager
def supervised(system: System, options: argparse.Namespace) -> Iterator[tuple[Path, psutil.Process]]:
    """The job's folder and the daemon."""
    with tempfile.TemporaryDirectory(prefix="stepkeeper-bench-") as name:
        folder = Path(name)
        text = (OURS if system.is_ours else THEIRS).format(
            folder=folder,
            python=sys.executable,
            root=ROOT,
            kind=system.kind,
            what=system.what,
            standby=f"standby = {system.kind}" if system.kind else "",
            width=options.width,
            every=options.every,
        )
        (folder / "bench.conf").write_text(text)
        ours = [sys.executable, "-m", "supervisor.daemon"]
        command = ours if system.is_ours else [str(peer.binaries() / "supervisord"), "-n"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        if not system.is_ours:
            del environment["PYTHONPATH"]  # its own package has the name of ours; jobs run in ROOT
        daemon = subprocess.Popen(
            [*command, "-c", str(folder / "bench.conf")],
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        mine = psutil.Process(daemon.pid)
        try:
            yield folder, mine
        finally:
            mine.suspend()
            for child in [*mine.children(recursive=True), mine]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            daemon.wait(30)


def until(look: Callable[[], object], what: str, folder: Path) -> None:
    end = time.monotonic() + PATIENCE_S
    while not look():
        if time.monotonic() > end:
            log = (folder / "job.log").read_text(errors="replace")[-2000:] if (folder / "job.log").exists() else ""
            raise SystemExit(f"waited {PATIENCE_S:g} s in vain for {what}\n{log}")
        time.sleep(0.02)


def standby_pid(folder: Path) -> int | None:
    """The pid of a waiting standby, read from the daemon's log so that the daemon is not disturbed."""
    pid = None
    for line in (folder / "daemon.log").read_text().splitlines():
        said = json.loads(line)
        if said["event"] == "standby.ready":
            pid = int(said["pid"])
        elif said["event"] in ("standby.exited", "standby.dropped") or said.get("was_standby"):
            pid = None
    return pid


def cpu_s(pid: int) -> float:
    """The CPU time of a process so far, to the nanosecond."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def relaunch(system: System, folder: Path, daemon: int, chance: Random) -> tuple[dict[str, float], float, float | None]:
    """One kill at a random moment of training: what `Figures.add` takes."""
    steps = [event for event in recorded_events(folder) if event.what == "step"]
    done = steps[-1].number if steps else 0
    until(
        lambda: [e for e in recorded_events(folder) if e.what == "step" and e.number >= done + STEPS_BETWEEN],
        "steps",
        folder,
    )
    spare = None
    if system.has_standby:
        until(lambda: standby_pid(folder), "its standby", folder)
        spare = standby_pid(folder)
        time.sleep(1.0)  # it is quiet again
    calm_since, used_s = time.monotonic(), cpu_s(spare) if spare is not None else 0.0
    time.sleep(CALM_S + chance.random())
    standby_percent = None
    if spare is not None:
        standby_percent = 100 * (cpu_s(spare) - used_s) / (time.monotonic() - calm_since)
    step_ms = median_step_ms(
        [event.at for event in recorded_events(folder) if event.what == "step" and event.at >= calm_since]
    )
    old = next(event.pid for event in reversed(recorded_events(folder)) if event.what == "step")
    known = children(daemon)
    killed_at = time.monotonic()
    os.kill(old, signal.SIGKILL)
    while Path(f"/proc/{old}").exists():
        time.sleep(LOOK_S)
    reaped_at = spawned_at = time.monotonic()
    while spare is None and not children(daemon) - known:
        time.sleep(LOOK_S)
        spawned_at = time.monotonic()
    until(lambda: _first_step(folder, killed_at), "a new step", folder)
    return _split(folder, (killed_at, reaped_at, spawned_at), spare), step_ms, standby_percent


def median_step_ms(ends: list[float]) -> float:
    """The median time of a step in milliseconds, from the moments (s) at which steps ended: saves don't count."""
    return 1000 * statistics.median(later - earlier for earlier, later in itertools.pairwise(ends))


def children(pid: int) -> set[int]:
    """The pids of the direct children of all threads."""
    pids: set[int] = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            pids |= set(map(int, (thread / "children").read_text().split()))
    return pids


def _first_step(folder: Path, killed_at: float) -> Happening | None:
    return next((event for event in recorded_events(folder) if event.what == "step" and event.at > killed_at), None)


def _split(folder: Path, seen: tuple[float, float, float], spare: int | None) -> dict[str, float]:
    """`seen` from outside: the kill, the dead one reaped, the next one there."""
    killed_at, reaped_at, spawned_at = seen
    first = _first_step(folder, killed_at)
    assert first is not None
    if spare is not None and first.pid != spare:
        raise SystemExit(f"pid {first.pid} trains on, and the standby was {spare}")
    story = [event for event in recorded_events(folder) if event.pid == first.pid and event.at <= first.at]
    last = {event.what: event.at for event in story}  # a process that began anew said all of it twice
    if spare is not None:
        spawned_at = last.get("promoted", last["began"])  # a script that is not run before says no more than that
    marks = [killed_at, reaped_at, spawned_at, last["imported"], last["built"], last["restored"], first.at]
    for number in range(1, len(marks)):  # what was done before the kill took no time after it
        marks[number] = max(marks[number], marks[number - 1])
    return {name: marks[number + 1] - marks[number] for number, name in enumerate(PARTS)}


def reaction_ms(folder: Path) -> list[float]:
    """Milliseconds from the daemon's log entry of a death to that of the next start."""
    died_at: float | None = None
    reactions = []
    for line in (folder / "daemon.log").read_text().splitlines():
        said = json.loads(line)
        at = time.mktime(time.strptime(said["timestamp"][:19], "%Y-%m-%dT%H:%M:%S")) + float(said["timestamp"][19:])
        if said["event"] == "worker.exited":
            died_at = at
        elif said["event"] == "worker.spawned" and died_at is not None:
            reactions.append((at - died_at) * 1000)
            died_at = None
    return reactions


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=5, help="kills of each system per round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--width", type=int, default=64, help="width of the network; 64 makes 51 MB of state with Adam")
    parser.add_argument("--every", type=int, default=20, help="steps between saves")
    parser.add_argument("--only", metavar="TEXT", help="run only systems with TEXT in their name")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chosen = [system for system in SYSTEMS if options.only is None or options.only in system.name]
    results = {system.name: Figures() for system in chosen}
    reactions: dict[str, list[float]] = {system.name: [] for system in chosen if system.is_ours}
    chance = Random(options.seed)
    for _ in range(options.rounds):
        for system in chosen:
            with supervised(system, options) as (folder, daemon):
                for _ in range(options.kills):
                    results[system.name].add(*relaunch(system, folder, daemon.pid, chance))
                    print(system.name, spread(results[system.name].parts["total"]), "s", flush=True)
                if system.is_ours:
                    reactions[system.name] += reaction_ms(folder)
    report(results, reactions, options, chance)


def report(
    results: dict[str, Figures],
    reactions: dict[str, list[float]],
    options: argparse.Namespace,
    chance: Random,
) -> None:
    table = Table(
        "system", *PARTS, "total, s", f"of {REFERENCE}'s (95 %)", "target", "step, ms", "standby, % of a core"
    )
    base = results[REFERENCE].parts["total"] if REFERENCE in results else []
    ratios = {}
    for name, figures in results.items():
        mine = figures.parts["total"]
        columns = [f"{statistics.median(figures.parts[part]):.3f}" for part in PARTS]
        if base:
            ratios[name] = ratio(mine, base, chance)
        shown = "{:.3f} ({:.3f} to {:.3f})".format(*ratios[name]) if base else "-"
        table.add_row(
            name,
            *columns,
            spread(mine),
            shown,
            f"{TARGETS[name]:g}" if name in TARGETS else "",
            spread(figures.step_ms),
            spread(figures.standby_percent),
        )
    Console(width=180).print(table)
    for name, values in reactions.items():
        print(f"{name}: from death to the next worker, by the daemon: {spread(values)} ms (target {REACTION_MS:g})")
    content = {
        "options": {**vars(options)},
        "seconds": {name: figures.parts for name, figures in results.items()},
        "step_ms": {name: figures.step_ms for name, figures in results.items()},
        "standby_percent": {name: figures.standby_percent for name, figures in results.items()},
        "ratios_to": {REFERENCE: ratios},
        "reaction_ms": reactions,
    }
    harness.write("relaunch", content)


def ratio(mine: list[float], base: list[float], chance: Random) -> tuple[float, float, float]:
    """Ratio of the medians, and the bounds of its bootstrap 95 % interval."""
    drawn = sorted(
        statistics.median(chance.choices(mine, k=len(mine))) / statistics.median(chance.choices(base, k=len(base)))
        for _ in range(2000)
    )
    return statistics.median(mine) / statistics.median(base), drawn[49], drawn[1949]


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})" if values else "-"


if __name__ == "__main__":
    main()
