"""Measures for how much of the time a job trains under repeated failures: stepkeeper and the usual alternatives.

Run with `python -m bench.goodput` (one mean time between failures, 60 s; up to half an hour; `--long`: 30, 60 and 300 s
and five traces each, up to 9 hours). Prints what each reaches and which seconds are missing, by category, and writes
bench/results/goodput.json.

All systems train the same model on the same data to the same step, on one device under TensorFlow's default strategy,
and meet the same seeded trace of failures: moments of a Poisson process, seven in ten kill -9, the rest in equal parts
SIGSTOP for good, and the newest checkpoint damaged (a flipped bit, or cut in half) before a kill -9; the only one that
a system has is left whole. A run ends at its last step or when its time is over, which is all that ends a hang that
nobody sees. Goodput is useful step time by wall time: the steps that the run has in the end, times its own time of a
step, the median over seconds in which it trained.

Bound: with M the mean time between failures, C the stall of a save, T the interval and R the time from a death to the
next step, all measured here but M, a system that survives everything has at first order, for T and R well below M,

    G = (M - M C / T - T / 2) / (M + R)

(J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974, of which
T = sqrt(2 C M) is the best; J. T. Daly, FGCS 22(3), 2006, has the higher orders.) Detecting a hang is not in it.
"""

import argparse
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.table import Table

from bench import harness, peer
from bench.harness import ROOT
from supervisor.protocol.checkpoints import selection
from tests.reading import alive
from tests.system.harness import Daemon
from tests.system.killing import Damage, spoil

LOOK_S = 0.05
HANG_S = 10.0  # ours, by default: hang_timeout; `auto` needs a minute of silence, and evidence
WINDOW_S = 1.0  # of training, over which the time of a step is taken; progress is told every 0.1 s
SEED = 5  # as many failures in the default run as its mean says, three kills and one damage, none before the first save
FIRST_S = 180.0  # until the first step; a busy machine imports TensorFlow in half a minute


@dataclass(frozen=True)
class Failure:
    """One failure of a trace: its seconds after the beginning. `cut`: damage by truncation instead of a flipped bit."""

    at_s: float
    kind: str
    cut: bool


def trace(mean_s: float, until_s: float, seed: int) -> list[Failure]:
    """The settings that all systems share."""
    chance = random.Random(f"{seed} {mean_s}")
    failures, at_s = [], 0.0
    while (at_s := at_s + chance.expovariate(1 / mean_s)) < until_s:
        (kind,) = chance.choices(("kill", "hang", "damage"), (70, 15, 15))
        failures.append(Failure(at_s, kind, chance.random() < 0.5))
    return failures


class Runs(Protocol):
    """A job under a supervisor."""

    def look(self) -> tuple[int | None, int]:
        """The worker's process and its last step, 0 before the first."""

    def is_over(self) -> bool: ...
    def damage(self, cut: bool) -> None: ...
    def costs(self) -> tuple[float | None, float | None]:
        """Seconds for which a save stops training, and between two saves; None: unknown."""

    def spent_s(self, until: float) -> dict[str, float]:
        """Where the time went from the beginning on until `until` (monotonic), by category (core/goodput.py)."""


class Ours:
    """stepkeeper with one job."""

    def __init__(self, daemon: Daemon, folder: Path) -> None:
        self._daemon, self._folder = daemon, folder

    def look(self) -> tuple[int | None, int]:
        status = self._daemon.status("t")
        trains = status["pid"] and status["state"] in ("RUNNING", "FLUSHING")
        return status["pid"], (status["job"]["step"] or 0) if trains else 0

    def is_over(self) -> bool:
        return self._daemon.status("t")["state"] in ("SUCCEEDED", "FAILED", "EXITED")

    def damage(self, cut: bool) -> None:
        if len(names := selection.committed_checkpoints(self._folder)) > 1:
            spoil(self._folder / str(names[0]), Damage.CUT if cut else Damage.FLIP)

    def costs(self) -> tuple[float | None, float | None]:
        attempts = self._daemon.call("history", name="t", limit=1000)["attempts"]
        saves, spent = (
            sum(attempt["checkpoints"] for attempt in attempts),
            self._daemon.call("goodput", name="t")["spent_s"],
        )
        interval_s: float | None = self._daemon.status("t")["job"]["interval_s"]
        return (spent["saving"] / saves if saves else None), interval_s

    def spent_s(self, until: float) -> dict[str, float]:
        return dict(self._daemon.call("goodput", name="t")["spent_s"])


class Theirs:
    """A peer, whose actions are in the events that its job records."""

    def __init__(self, folder: Path, every_s: float) -> None:
        self._folder, self._every_s = folder, every_s
        self.story = folder / "story"

    def recorded_events(self) -> list[tuple[float, str, float]]:
        if not self.story.exists():
            return []
        lines = (line.split() for line in self.story.read_text().splitlines())
        return [(float(at), what, float(number)) for at, what, number in (line for line in lines if len(line) == 3)]

    def look(self) -> tuple[int | None, int]:
        pid, step = 0, 0
        for _, what, number in self.recorded_events():
            if what == "begin":
                pid, step = int(number), 0
            elif what == "step":
                step = int(number)
        return (pid, step) if pid and alive(pid) else (None, 0)

    def is_over(self) -> bool:
        return any(what == "done" for _, what, _ in self.recorded_events())

    def damage(self, cut: bool) -> None:
        files = [*self._folder.glob("work/ckpt-*.data-*"), *self._folder.glob("work/backup/latest.weights.h5")]
        if len(files) + len([*self._folder.glob("work/backup/*.bkp")]) > 1:
            path = max(files, key=lambda file: file.stat().st_mtime)
            if cut:
                os.truncate(path, path.stat().st_size // 2)
            else:
                content = bytearray(path.read_bytes())
                content[len(content) // 2] ^= 1
                path.write_bytes(content)

    def costs(self) -> tuple[float | None, float | None]:
        saved = [number for _, what, number in self.recorded_events() if what == "saved"]
        return (statistics.median(saved) if saved else None), self._every_s

    def spent_s(self, until: float) -> dict[str, float]:
        return spent_by(self.recorded_events(), until)


def spent_by(story: list[tuple[float, str, float]], until: float) -> dict[str, float]:
    """The seconds by category in what a peer's job recorded; each lasts from the event before."""
    spent_s = dict.fromkeys(("starting", "training", "replaying", "saving", "down"), 0.0)
    before: tuple[float, str] | None = None
    furthest = 0.0
    for at, what, number in (*((at, what, number) for at, what, number in story if at <= until), (until, "end", 0.0)):
        if before is not None:
            name = {"saved": "saving", "begin": "down", "end": "down", "done": "saving"}.get(what)
            if what == "step":
                name = "starting" if before[1] == "begin" else "training" if number > furthest else "replaying"
            spent_s[name or "down"] += at - before[0]
        furthest = max(furthest, number) if what == "step" else furthest
        before = at, what
    return spent_s


OURS = {
    "cold": "standby=off\n",
    "default": "",
    "warm": "standby=warm\n",
    "hot": "standby=hot\n",
    "disk": "standby=hot\nmemory_checkpoint=off\n",
}
"""The kinds of stepkeeper, and what the job of each has in its configuration besides."""


@dataclass(frozen=True)
class System:
    """A system. `kind`: one of OURS for stepkeeper; manager or fit for the peers."""

    name: str
    kind: str

    @property
    def is_ours(self) -> bool:
        return self.kind in OURS


SYSTEMS = (
    System("stepkeeper, cold", "cold"),
    System("stepkeeper, nothing configured", "default"),
    System("stepkeeper, warm standby", "warm"),
    System("stepkeeper, hot standby", "hot"),
    System("stepkeeper, hot standby, no copies in memory", "disk"),
    System("Supervisor + CheckpointManager", "manager"),
    System("Supervisor + BackupAndRestore", "fit"),
)


@contextlib.contextmanager
def begun(system: System, folder: Path, steps: int, every_s: float, step_s: float, hang_s: float) -> Iterator[Runs]:
    """Runs the job; afterwards none of its processes is left. `every_s`: the peers' interval; `hang_s`: our limit."""
    environment = {"PYTHONPATH": str(ROOT), "STEPS": str(steps), "STEP_S": str(step_s)}
    if system.is_ours:
        text = (
            f"[program:t]\nentrypoint=bench.goodput_job:training\ndirectory={ROOT}\ncheckpoint_dir={folder}/work\n"
            f"hang_timeout={hang_s:g}\ncheckpoint_interval_min=2\nstartretries=1000\n"
            f"stdout_logfile={folder}/job.log\nredirect_stderr=true\n{OURS[system.kind]}"
        )
        with Daemon(folder, text, environment=environment, scripts_have=None) as daemon:
            yield Ours(daemon, folder / "work")
        return
    variables = ",".join(f'{key}="{value}"' for key, value in environment.items())
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}  # its package is named as ours
    runs = Theirs(folder, every_s)
    conf = folder / "peer.conf"
    conf.write_text(
        f"[supervisord]\nnodaemon=true\nlogfile={folder}/daemon.log\npidfile={folder}/daemon.pid\n"
        f"[program:t]\ndirectory={ROOT}\nautorestart=unexpected\nstartsecs=0\nstopwaitsecs=1\n"
        f"stdout_logfile={folder}/job.log\nredirect_stderr=true\nenvironment={variables}\n"
        f"command={sys.executable} -m bench.goodput_job {system.kind} {folder}/work {runs.story} {steps} {every_s:g}\n"
    )
    command = [str(peer.binaries() / "supervisord"), "-n", "-c", str(conf)]
    with (folder / "daemon.err").open("wb") as errors:
        process = subprocess.Popen(command, cwd=folder, stdout=errors, stderr=errors, env=clean)
    try:
        yield runs
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


@dataclass
class Outcome:
    """Of one run, seconds. `relaunch_s`: from each death (or SIGSTOP) to the next attempt's first step.

    `spent_s`: by category, from the first step on; steps that a loading standby slows are training there.
    """

    system: str
    mean_s: float
    seed: int
    steps: int = 0
    wall_s: float = 0.0
    finished: bool = False
    failures: dict[str, int] = field(default_factory=dict)
    relaunch_s: list[float] = field(default_factory=list)
    stall_s: float | None = None
    interval_s: float | None = None
    step_s: float | None = None
    spent_s: dict[str, float] = field(default_factory=dict)
    remark: str = ""

    @property
    def goodput(self) -> float:
        return min(1.0, self.steps * self.step_s / self.wall_s) if self.step_s and self.wall_s else 0.0

    def missing_s(self) -> dict[str, float]:
        """The seconds that were not useful step time, by category; `slower`: what steps took above their median."""
        missing = {category: seconds for category, seconds in self.spent_s.items() if category != "training"}
        missing["slower"] = self.spent_s.get("training", 0.0) - self.goodput * self.wall_s
        return missing

    def bound(self) -> float | None:
        """The estimate that the module's docstring describes; None if its inputs were not measured."""
        if not self.relaunch_s or not self.stall_s or not self.interval_s:
            return None
        r_s, m_s, t_s = statistics.median(self.relaunch_s), self.mean_s, min(self.interval_s, 2 * self.mean_s)
        return max(0.0, (m_s - m_s * self.stall_s / t_s - t_s / 2) / (m_s + r_s))


def carry_out(runs: Runs, failure: Failure, pid: int) -> bool:
    """Injects the failure. Returns whether there was a worker to break."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        if failure.kind == "damage":
            runs.damage(failure.cut)
        if failure.kind != "hang":
            os.kill(pid, signal.SIGKILL)
        return True
    return False


def measured(
    system: System, mean_s: float, seed: int, steps: int, limit_s: float, options: argparse.Namespace
) -> Outcome:
    """One run under one trace, measured from the first step on: the first start of a job is no failure."""
    outcome = Outcome(system.name, mean_s, seed)
    with tempfile.TemporaryDirectory(prefix="goodput-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        runs = stack.enter_context(
            begun(system, folder, steps, options.peer_interval, options.step_s, options.hang_timeout)
        )
        waiting = time.monotonic()
        while runs.look()[1] < 1:
            if time.monotonic() - waiting > FIRST_S:
                outcome.remark = f"no step within {FIRST_S:g} s: {_last_words(folder)}"
                return outcome
            time.sleep(LOOK_S)
        began, (pid, first) = time.monotonic(), runs.look()
        spent_before = runs.spent_s(began)
        failures = trace(mean_s, limit_s, seed)
        window, step_times = (began, first, pid), []
        broken_at: float | None = None
        broken_pid: int | None = None
        while (now := time.monotonic()) - began < limit_s and not runs.is_over():
            pid, step = runs.look()
            if now - window[0] >= WINDOW_S:
                if step > window[1] > 0 and pid == window[2]:
                    step_times.append((now - window[0]) / (step - window[1]))
                window = now, step, pid
            if broken_at is not None and step and pid != broken_pid:
                outcome.relaunch_s.append(now - broken_at)
                broken_at = None
            if failures and now - began >= failures[0].at_s:
                failure = failures.pop(0)
                if pid is not None and carry_out(runs, failure, pid):
                    outcome.failures[failure.kind] = outcome.failures.get(failure.kind, 0) + 1
                    broken_at, broken_pid = broken_at or now, pid
            outcome.steps = step or outcome.steps
            time.sleep(LOOK_S)
        outcome.finished, outcome.wall_s = runs.is_over(), time.monotonic() - began
        outcome.steps = (
            steps if outcome.finished and not failed(runs) else runs.look()[1] or durable(system, runs, outcome)
        )
        outcome.step_s = statistics.median(step_times) if step_times else None
        outcome.stall_s, outcome.interval_s = runs.costs()
        spent_s = runs.spent_s(began + outcome.wall_s)
        outcome.spent_s = {
            category: max(0.0, seconds - spent_before.get(category, 0.0)) for category, seconds in spent_s.items()
        }
    return outcome


def _last_words(folder: Path) -> str:
    """The last line of the job's log."""
    path = folder / "job.log"
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return lines[-1][:200] if lines else "it printed nothing"


def failed(runs: Runs) -> bool:
    """Whether stepkeeper gave up before the last step."""
    return isinstance(runs, Ours) and runs._daemon.status("t")["state"] != "SUCCEEDED"


def durable(system: System, runs: Runs, outcome: Outcome) -> int:
    """What counts of a run that has no worker at work when its time is over: what is on the disk, for ours; for a peer
    the last step before, to its favour."""
    if isinstance(runs, Ours):
        names = selection.committed_checkpoints(runs._folder)
        return names[0].step if names else 0
    return outcome.steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--means", type=float, nargs="+", help="mean seconds between failures")
    parser.add_argument("--seeds", type=int, nargs="+", help="seeds; each makes one trace of failures")
    parser.add_argument("--limit", type=float, help="maximum seconds of a run")
    parser.add_argument(
        "--steps", type=int, default=0, help="steps of a run; by default as many as fit into half of the limit"
    )
    parser.add_argument("--step-s", type=float, default=0.02, help="expected seconds per step, for planning")
    parser.add_argument("--peer-interval", type=float, default=10.0, help="seconds between the peers' saves")
    parser.add_argument(
        "--hang-timeout", type=float, default=HANG_S, help="seconds of silence that ours take for a hang"
    )
    parser.add_argument("--systems", nargs="+", default=[system.kind for system in SYSTEMS])
    parser.add_argument("--long", action="store_true")
    options = parser.parse_args()
    means = options.means or ([30.0, 60.0, 300.0] if options.long else [60.0])
    seeds = options.seeds or (list(range(1, 6)) if options.long else [SEED])
    outcomes: list[Outcome] = []
    for mean_s in means:
        limit_s = options.limit or (max(240.0, 2 * mean_s) if options.long else 240.0)
        steps = options.steps or int(0.55 * limit_s / options.step_s)
        for seed in seeds:
            for system in SYSTEMS:
                if system.kind in options.systems:
                    outcomes.append(measured(system, mean_s, seed, steps, limit_s, options))
                    Console(stderr=True).print(outcomes[-1])
    show(outcomes)
    runs = [{**asdict(outcome), "goodput": outcome.goodput, "bound": outcome.bound()} for outcome in outcomes]
    harness.write(
        "goodput", {"peer_interval_s": options.peer_interval, "hang_timeout_s": options.hang_timeout, "runs": runs}
    )


def show(outcomes: list[Outcome]) -> None:
    """The table: a row for each system and mean, over its traces."""
    table = Table("mean", "system", "goodput", "bound", "relaunch s", "interval s", "step ms", "failures", "remark")
    for mean_s in dict.fromkeys(outcome.mean_s for outcome in outcomes):
        for name in dict.fromkeys(outcome.system for outcome in outcomes):
            of_both = [
                outcome
                for outcome in outcomes
                if outcome.mean_s == mean_s and outcome.system == name and outcome.wall_s
            ]
            remarks = {outcome.remark for outcome in outcomes if outcome.system == name and outcome.remark}
            unfinished = sum(not outcome.finished for outcome in of_both)
            if unfinished:
                remarks.add(f"{unfinished} of {len(of_both)} out of time")
            goodput = [outcome.goodput for outcome in of_both]
            bound = [value for outcome in of_both if (value := outcome.bound()) is not None]
            relaunch = [seconds for outcome in of_both for seconds in outcome.relaunch_s]
            interval = [outcome.interval_s for outcome in of_both if outcome.interval_s]
            kinds = {
                kind: sum(outcome.failures.get(kind, 0) for outcome in of_both) for kind in ("kill", "hang", "damage")
            }
            table.add_row(
                f"{mean_s:g} s", name, _spread(goodput), _spread(bound), _spread(relaunch), _spread(interval),
                _spread([outcome.step_s * 1000 for outcome in of_both if outcome.step_s]),
                ", ".join(f"{kind} {count}" for kind, count in kinds.items() if count), "; ".join(sorted(remarks)),
            )  # fmt: skip
    Console(width=160).print(table)
    categories = sorted({name for outcome in outcomes for name in outcome.missing_s()})
    missing = Table("mean", "system", *categories, title="missing, % of the time")
    for mean_s, name in dict.fromkeys((outcome.mean_s, outcome.system) for outcome in outcomes):
        of_both = [
            outcome for outcome in outcomes if (outcome.mean_s, outcome.system) == (mean_s, name) and outcome.wall_s
        ]
        wall_s = sum(outcome.wall_s for outcome in of_both) or 1.0
        shares = (sum(outcome.missing_s().get(key, 0.0) for outcome in of_both) / wall_s for key in categories)
        missing.add_row(f"{mean_s:g} s", name, *(f"{100 * share:.1f}" for share in shares))
    Console(width=160).print(missing)


def _spread(values: list[float]) -> str:
    if not values:
        return "-"
    middle = f"{statistics.median(values):.2f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
