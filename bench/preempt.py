"""Measures what a preemption notice saves and costs: stepkeeper and TensorFlow's PreemptionCheckpointHandler.

Run with `python -m bench.preempt` (6 minutes; `--long`: every notice in every phase, 1 and 8 jobs, about an hour).
Prints a table and writes bench/results/preempt.json.

A case is a host of one or eight jobs, and a notice of so many seconds that comes at a random moment of a phase: import,
tracing, a step, a save in flight, an evaluation, a stall of the data. stepkeeper reads it from a notice file; for the
handler SIGTERM goes to PyPI's Supervisor, which passes it on and has all the time of the notice to stop. At the
deadline everything is killed, and what is on the disk then counts. Figures of each job:

durable   nothing that was trained when the notice came is lost. Asked of a job only where the notice is longer than
          what remained until it could save at all: the rest of the phase, one step, and a save (the floor).
given up  seconds of training before the deadline that are not in the last checkpoint: stopped early, or trained in
          vain. Where training could not have begun by then, none.
request   seconds from the notice to the first checkpoint that holds all that was trained until it came.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from bench import harness, peer, preempt_job
from supervisor.protocol import durable

ROOT = Path(__file__).resolve().parent.parent
PHASES = ("import", "tracing", "step", "save", "evaluation", "stall")
SPAN_S = {"import": 2.0, "tracing": 1.0, "step": 0.02, "save": 0.3, "evaluation": 1.0, "stall": 1.0}
FIRST_S = 180.0  # eight TensorFlows on two cores
LOOK_S = 0.005
STATE_BYTES = 12 * preempt_job.LAYERS * preempt_job.WIDTH * (preempt_job.WIDTH + 1)  # float32, and Adam's two slots

OURS = """
[supervisord]
nodaemon = true
state_dir = {folder}/state
notices = file
notice_dir = {folder}/notices
logfile = {folder}/daemon.log
[unix_http_server]
file = {folder}/s.sock
"""
OUR_JOB = """
[program:job{number}]
command = {python} -m bench.preempt_job {kind} {folder}/job{number} {folder}/job{number}.story
directory = {root}
checkpoint_dir = {folder}/job{number}
checkpoint_interval = {every} steps
standby = off
stdout_logfile = {folder}/job{number}.log
redirect_stderr = true
"""
THEIRS = """
[supervisord]
nodaemon = true
logfile = {folder}/daemon.log
pidfile = {folder}/daemon.pid
"""
THEIR_JOB = """
[program:job{number}]
command = {python} -m bench.preempt_job handler {folder}/job{number} {folder}/job{number}.story
directory = {root}
environment = GCE_METADATA_IP="127.0.0.1:9",GRACE_S="{grace}"
stopwaitsecs = 600
autorestart = false
stdout_logfile = {folder}/job{number}.log
redirect_stderr = true
"""


@dataclass(frozen=True)
class System:
    """A system. `kind`: of job. `is_told`: the handler knows how long the notice is."""

    name: str
    kind: str
    is_told: bool = False

    @property
    def is_ours(self) -> bool:
        return self.kind != "handler"


TENSORFLOW = System("stepkeeper, TensorFlow", "worker")
PLAIN = System("stepkeeper, plain", "plain")
HANDLER = System("handler, Supervisor", "handler")
TOLD = System("handler, Supervisor, grace_period", "handler", is_told=True)


@dataclass(frozen=True)
class Case:
    system: System
    jobs: int
    notice_s: float
    phase: str
    fraction: float


@dataclass(frozen=True)
class Outcome:
    """Of one job, seconds.

    `could`: it could have been durable in time. `request_s`: None, it never was. `startup_s`: from its first line to
    its first step, `age_s`: to the notice.
    """

    could: bool
    durable: bool
    given_up_s: float
    request_s: float | None
    startup_s: float | None
    age_s: float


@dataclass(frozen=True)
class Happening:
    at: float
    what: str
    number: int


def recorded_events(story: Path) -> list[Happening]:
    """The events that a job has recorded so far."""
    if not story.exists():
        return []
    lines = (line.split() for line in story.read_text().splitlines() if line.count(" ") == 2)
    return [Happening(float(at), what, int(number)) for at, what, number in lines]


def durable_step(folder: Path, is_ours: bool) -> int:
    """The step of the newest whole checkpoint; 0 if there is none."""
    if is_ours:
        steps = [int(path.parent.name[5:15]) for path in folder.glob("step-*.a*/MANIFEST.json")
                 if not path.parent.name.endswith(".partial")]  # fmt: skip
        return max(steps, default=0)
    with contextlib.suppress(OSError):  # as a restore would: TensorFlow believes the file `checkpoint`
        first = (folder / "checkpoint").read_text().splitlines()[0]
        return int(first.rpartition("-")[2].rstrip('"'))
    return 0


@contextlib.contextmanager
def host(case: Case) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """A folder with the supervised jobs of a case; at the end everything is killed."""
    with tempfile.TemporaryDirectory(prefix="stepkeeper-bench-") as name:
        folder = Path(name)
        head, body = (OURS, OUR_JOB) if case.system.is_ours else (THEIRS, THEIR_JOB)
        grace = int(case.notice_s) if case.system.is_told else 0
        text = head.format(folder=folder)
        for number in range(case.jobs):
            text += body.format(folder=folder, number=number, python=sys.executable, root=ROOT, kind=case.system.kind,
                                grace=grace, every=preempt_job.SAVE_EVERY)  # fmt: skip
        (folder / "bench.conf").write_text(text)
        (folder / "notices").mkdir(mode=0o700)
        command = [sys.executable, "-m", "supervisor.daemon"] if case.system.is_ours else [peer_command(), "-n"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "1"}
        if not case.system.is_ours:
            del environment["PYTHONPATH"]  # its own package has the name of ours; jobs run in ROOT
        daemon = subprocess.Popen(
            [*command, "-c", str(folder / "bench.conf")], cwd=folder, env=environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield folder, daemon
        finally:
            lose(daemon)


def peer_command() -> str:
    return str(peer.binaries() / "supervisord")


def lose(daemon: subprocess.Popen[bytes]) -> None:
    """Ends everything at once, as if the host were gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        mine = psutil.Process(daemon.pid)
        mine.suspend()  # first, so that nothing is started again
        everybody = mine.children(recursive=True)
        for process in [*everybody, mine]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    daemon.wait(30)


def until(look: Callable[[], bool], what: str, limit_s: float = FIRST_S) -> None:
    end = time.monotonic() + limit_s
    while not look():
        if time.monotonic() > end:
            raise SystemExit(f"waited {limit_s:g} s in vain for {what}")
        time.sleep(LOOK_S)


def reach(case: Case, stories: Sequence[Path]) -> None:
    """Returns in the wanted phase of the first job, all others training too (where that phase is one of training)."""
    story = stories[0]
    if case.phase not in ("import", "tracing"):
        until(
            lambda: all(any(event.what == "save" for event in recorded_events(one)) for one in stories),
            "everybody's first save",
        )
    seen = len([event for event in recorded_events(story) if event.what == case.phase])
    if case.phase in ("import", "tracing"):
        seen = 0
    until(
        lambda: len([event for event in recorded_events(story) if event.what == case.phase]) > seen,
        f"{case.phase} of {story}",
    )
    time.sleep(case.fraction * SPAN_S[case.phase])


def give(case: Case, folder: Path, daemon: subprocess.Popen[bytes]) -> None:
    """Sends the notice."""
    if case.system.is_ours:
        text = json.dumps({"version": 1, "kind": "preemption", "in_s": case.notice_s, "reason": "bench"})
        (folder / "notices" / ".new").write_text(text)
        (folder / "notices" / ".new").rename(folder / "notices" / "bench.json")
    else:
        daemon.send_signal(signal.SIGTERM)


def run(case: Case) -> list[Outcome]:
    """One case, from the start of its host to its end."""
    with host(case) as (folder, daemon):
        stories = [folder / f"job{number}.story" for number in range(case.jobs)]
        reach(case, stories)
        noticed_at = time.monotonic()
        give(case, folder, daemon)
        deadline_at = noticed_at + case.notice_s
        trained = [
            max((event.number for event in recorded_events(one) if event.what == "step"), default=0) for one in stories
        ]
        first: list[float | None] = [None] * case.jobs
        kept = [0] * case.jobs
        while time.monotonic() < deadline_at:
            for number in range(case.jobs):
                kept[number] = durable_step(folder / f"job{number}", case.system.is_ours)
                if first[number] is None and kept[number] >= max(trained[number], 1):
                    first[number] = time.monotonic() - noticed_at
            time.sleep(min(LOOK_S * case.jobs, max(0.0, deadline_at - time.monotonic())))
        lose(daemon)
        kept = [durable_step(folder / f"job{number}", case.system.is_ours) for number in range(case.jobs)]
        return [
            judge(case, recorded_events(stories[number]), noticed_at, trained[number], kept[number], first[number])
            for number in range(case.jobs)
        ]


def judge(
    case: Case, story: Sequence[Happening], noticed_at: float, trained: int, kept: int, request_s: float | None
) -> Outcome:
    """What became of one job; what it gave up is corrected by `against` where it never trained."""
    deadline_at = noticed_at + case.notice_s
    steps = [event for event in story if event.what == "step"]
    began_at = story[0].at
    kept_at = max((step.at for step in steps if step.number <= kept), default=max(noticed_at, began_at))
    next_s = min((step.at - noticed_at for step in steps if step.at >= noticed_at), default=SPAN_S[case.phase])
    could = trained > 0 and case.notice_s > next_s + preempt_job.STEP_S + floor_s(case.jobs)
    startup_s = steps[0].at - began_at if steps else None
    return Outcome(
        could, kept >= trained, max(0.0, deadline_at - kept_at), request_s, startup_s, max(0.0, noticed_at - began_at)
    )


def against(startup_s: float, notice_s: float, outcome: Outcome) -> Outcome:
    """Who had not begun to train when the notice came gave up only what the rest of the start left of the time."""
    rest_s = max(0.0, startup_s - outcome.age_s)
    return replace(outcome, given_up_s=min(outcome.given_up_s, max(0.0, notice_s - rest_s)))


@cache
def floor_s(jobs: int) -> float:
    """The floor of a save: writing and syncing as many bytes, all jobs at once; the slower of two tries."""
    content = os.urandom(STATE_BYTES)
    tries = []
    with tempfile.TemporaryDirectory(prefix="stepkeeper-bench-") as name, ThreadPoolExecutor(jobs) as pool:
        for _ in range(2):
            began = time.monotonic()
            list(pool.map(lambda number: durable.write_file(Path(name, str(number)), content), range(jobs)))
            tries.append(time.monotonic() - began)
    return max(tries)


def cases(options: argparse.Namespace) -> list[Case]:
    """The cases, in random order, the same for every system."""
    chance = random.Random(options.seed)
    if options.long:
        plan = [(system, 1, (2, 5, 30, 120), PHASES) for system in (TENSORFLOW, HANDLER, TOLD)]
        plan += [(PLAIN, 8, (2, 5, 30, 120), PHASES), (TENSORFLOW, 8, (5, 30), ("step", "save", "evaluation"))]
    else:
        plan = [(system, 1, (5,), ("save", "evaluation")) for system in (TENSORFLOW, HANDLER)]
        plan += [(system, 1, (30,), ("step",)) for system in (TENSORFLOW, HANDLER, TOLD)]
        plan += [(PLAIN, 8, (2, 5), ("step", "save", "stall"))]
    fractions: dict[tuple[float, str], float] = {}
    for notice_s, phase in itertools.product((2, 5, 30, 120), PHASES):
        fractions[notice_s, phase] = chance.random()
    wanted = [
        Case(system, jobs, notice_s, phase, fractions[notice_s, phase])
        for system, jobs, notices, phases in plan
        for notice_s, phase in itertools.product(notices, phases)
        if options.only is None or options.only in f"{system.name} {jobs} {notice_s} {phase}"
    ]
    return wanted * options.rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--long", action="store_true", help="every notice in every phase (about an hour)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", metavar="TEXT", help="run only cases with TEXT in 'SYSTEM JOBS NOTICE PHASE'")
    options = parser.parse_args()
    results: list[tuple[Case, list[Outcome]]] = []
    for case in cases(options):
        outcomes = run(case)
        results.append((case, outcomes))
        lost = sum(outcome.could and not outcome.durable for outcome in outcomes)
        print(
            f"{case.system.name}, {case.jobs} job(s), {case.notice_s:g} s in {case.phase}: "
            f"{sum(outcome.durable for outcome in outcomes)} durable, {lost} missed, gave up "
            f"{spread([outcome.given_up_s for outcome in outcomes])} s, request {spread(requests(outcomes))} s",
            flush=True,
        )
    report(corrected(results))


def corrected(results: list[tuple[Case, list[Outcome]]]) -> list[tuple[Case, list[Outcome]]]:
    """The result, corrected by the median start of each system."""
    starts: dict[tuple[str, int], list[float]] = {}
    for case, outcomes in results:
        key = case.system.name, case.jobs
        starts.setdefault(key, []).extend(outcome.startup_s for outcome in outcomes if outcome.startup_s is not None)
    return [
        (case, [against(statistics.median(starts[case.system.name, case.jobs] or [0.0]), case.notice_s, outcome)
                for outcome in outcomes])
        for case, outcomes in results
    ]  # fmt: skip


def requests(outcomes: Sequence[Outcome]) -> list[float]:
    return [outcome.request_s for outcome in outcomes if outcome.request_s is not None]


def report(results: list[tuple[Case, list[Outcome]]]) -> None:
    table = Table("system", "jobs", "notice", "durable", "gave up, s", "request to durable, s")
    rows: dict[tuple[str, int, float], list[Outcome]] = {}
    for case, outcomes in results:
        rows.setdefault((case.system.name, case.jobs, case.notice_s), []).extend(outcomes)
    for (name, jobs, notice_s), outcomes in rows.items():
        asked = [outcome for outcome in outcomes if outcome.could]
        share = f"{sum(outcome.durable for outcome in asked)} of {len(asked)}"
        gave = spread([outcome.given_up_s for outcome in outcomes])
        table.add_row(name, str(jobs), f"{notice_s:g} s", share, gave, spread(requests(outcomes)))
    Console(width=120).print(table)
    content = [{**asdict(case), "outcomes": [asdict(outcome) for outcome in outcomes]} for case, outcomes in results]
    floors = {jobs: floor_s(jobs) for jobs in {case.jobs for case, _ in results}}
    harness.write("preempt", {"floor_s": floors, "cases": content})


def spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
