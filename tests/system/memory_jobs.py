"""Jobs whose state is copied into memory, under a daemon of their own, and what each death of their workers cost them.

A job writes down each step that it has done: so each death tells which steps were trained a second time, how long these
had taken, and whether they came to the same.
"""

import itertools
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import forked
from tests.places import CHILDREN, ROOT
from tests.reading import records, whole_lines
from tests.system.harness import Daemon
from tests.waiting import wait_until

OWN_LOOP = CHILDREN / "remembering.py"
FIT = CHILDREN / "remembering_fit.py"
STEP_S = 0.02
COPY_EVERY_S = 1.0
START_S = 120.0  # imports and tracing, on a machine that others use
LONGEST_LINE = 200  # bytes
SIGNALS = {"kill": signal.SIGKILL, "segv": signal.SIGSEGV, "abort": signal.SIGABRT}


@dataclass(frozen=True, slots=True)
class Step:
    """A step that was done, by whom and when (Unix time), and a value that says whether it came to the same."""

    number: int
    pid: int
    done_at: float
    value: str


@dataclass(frozen=True, slots=True)
class Repeated:
    """What a death cost: so many steps were trained again, which had taken so long."""

    steps: int
    training_s: float


def _step_of(line: str) -> Step:
    step, pid, at, value = line.split()
    return Step(int(step), int(pid), float(at), value)


class MemoryJob:
    """One job. `keys`: more lines of its section; `variables`: more of its environment."""

    def __init__(
        self,
        folder: Path,
        steps: int,
        script: Path = OWN_LOOP,
        keys: str = "standby=off\n",
        checkpoints: Path | None = None,
        **variables: object,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.checkpoints = checkpoints or folder / "ckpt"
        self.environment = {"STEPS": str(steps), "STEP_S": str(STEP_S), "PYTHONPATH": str(ROOT), "BESIDE": str(folder)}
        self.environment |= {name: str(value) for name, value in variables.items()}
        text = ",".join(f'{name}="{value}"' for name, value in self.environment.items())
        section = (
            f"[program:job]\ncommand={sys.executable} {script}\ncheckpoint_dir={self.checkpoints}\n"
            f"memory_checkpoint=auto\nenvironment={text}\n{keys}"
        )
        self.daemon = Daemon(folder, section, scripts_have=forked.TENSORFLOW)

    @property
    def steps(self) -> list[Step]:
        """All steps that were done, in their order."""
        return [_step_of(line) for line in whole_lines(self.folder / "steps")]

    @property
    def last(self) -> Step | None:
        """The step that was done last."""
        try:
            with (self.folder / "steps").open("rb") as file:
                file.seek(-min(LONGEST_LINE, file.seek(0, os.SEEK_END)), os.SEEK_END)
                line = file.read().rpartition(b"\n")[0].rpartition(b"\n")[2].decode()
        except FileNotFoundError:
            return None
        return _step_of(line) if line else None

    def status(self) -> dict[str, Any]:
        return dict(self.daemon.status("job"))

    def until_trains(self, but: int | None = None) -> int:
        """The pid of the worker, another one than `but`, once it has done a step."""

        def trains() -> int | None:
            last = self.last
            return None if last is None or last.pid == but else last.pid

        return wait_until(trains, "the next worker trains", START_S, self.daemon.errors)

    def until_copied(self) -> int:
        """The worker's pid when it has had the time for a copy or two."""
        self.daemon.until(lambda: self.status()["job"]["memory_step"], "a copy is in memory", START_S)
        pid, begun_at = self.until_trains(), time.time()
        wait_until(lambda: (last := self.last) and last.done_at > begun_at + 1.5 * COPY_EVERY_S, "it trains on")
        return pid

    def order(self, how: str) -> None:
        """Has the worker die in its next step."""
        path = self.folder / "die.new"
        path.write_text(how)
        path.rename(self.folder / "die")

    def kill(self, how: str, pid: int) -> None:
        """Ends the worker: at once by a signal, or in its next step."""
        if how in SIGNALS:
            os.kill(pid, SIGNALS[how])
        else:
            self.order(how)

    def hurry(self) -> None:
        """From now on a step takes no longer than it has to."""
        (self.folder / "hurry").touch()

    def until_done(self, patience_s: float = 120.0) -> str:
        """The hash of the last state."""
        path = self.folder / "hash"

        def written() -> str:  # empty between its creation and its one write
            return path.read_text() if path.exists() else ""

        return wait_until(written, "training is complete", patience_s, self.daemon.errors)

    @property
    def repeated(self) -> list[Repeated]:
        """What each death cost.

        Raises AssertionError if a step is missing, or came to something else the second time.
        """
        attempts = [list(steps) for _, steps in itertools.groupby(self.steps, key=lambda step: step.pid)]
        values: dict[int, str] = {}
        for step in itertools.chain.from_iterable(attempts):
            assert values.setdefault(step.number, step.value) == step.value, (
                f"step {step.number} has come out otherwise"
            )
        costs = []
        for before, after in itertools.pairwise(attempts):
            first, last = after[0].number, before[-1]
            assert first <= last.number + 1, f"steps {last.number + 1} to {first - 1} were never trained"
            begun_at = max((step.done_at for step in before if step.number < first), default=before[0].done_at)
            costs.append(Repeated(last.number + 1 - first, last.done_at - begun_at))
        return costs

    def logged(self, event: str) -> list[dict[str, object]]:
        """What the daemon's log has of it."""
        return [record for record in records(self.folder / "daemon.log") if record["event"] == event]


def undisturbed(folder: Path, steps: int, script: Path = OWN_LOOP, **variables: object) -> str:
    """The hash of the last state, of a training that nobody disturbs."""
    folder.mkdir(exist_ok=True)
    own = {"STEPS": steps, "STEP_S": 0, "PYTHONPATH": ROOT, "BESIDE": folder, **variables}
    environment = {**os.environ, **{name: str(value) for name, value in own.items()}}
    done = forked.run([sys.executable, str(script)], env=environment, cwd=folder, timeout=START_S + steps)
    assert done.returncode == 0, done.stderr[-3000:]
    return (folder / "hash").read_text()


class HotPair:
    """Two jobs of `remembering_entry.py` with one daemon: `killed` has a hot standby; `undisturbed` has none, and
    hurries. `keys`: more lines of both sections; `variables`: more of their environment."""

    def __init__(self, folder: Path, keys: str = "", **variables: object) -> None:
        self._folders = {name: folder / name for name in ("killed", "undisturbed")}
        sections = ""
        for name, place in self._folders.items():
            place.mkdir()
            own = {"STEPS": 6000, "STEP_S": 0.01, "BESIDE": place, "PYTHONPATH": ROOT, **variables}
            text = ",".join(f'{variable}="{value}"' for variable, value in own.items())
            standby = "hot" if name == "killed" else "off"
            sections += (
                f"[program:{name}]\nentrypoint=tests.children.remembering_entry:training\nreplicas=1\n"
                f"standby={standby}\nmemory_checkpoint=auto\ncheckpoint_dir={place}/ckpt\nenvironment={text}\n{keys}"
            )
        (self._folders["undisturbed"] / "hurry").touch()
        self.daemon = Daemon(folder, sections, scripts_have=None)

    def job(self) -> dict[str, Any]:
        """The status of the one that is killed, as a job."""
        return dict(self.daemon.status("killed")["job"])

    def kill_when(self, is_time: Callable[[dict[str, Any]], Any], attempt: int) -> dict[str, Any]:
        """Kills the worker of that attempt once its standby waits and `is_time`; how the job was right before."""

        def look() -> dict[str, Any] | None:
            job = self.job()
            is_there = job["attempt"] == attempt and job["step"] and job["standby"]["stage"] == "ready"
            return job if is_there and is_time(job) else None

        before: dict[str, Any] = self.daemon.until(look, "the moment has come, and a standby waits", START_S)
        os.kill(self.daemon.status("killed")["pid"], signal.SIGKILL)
        return before

    def hashes(self) -> set[str]:
        """Of the last states, once both have ended."""
        (self._folders["killed"] / "hurry").touch()
        for name in self._folders:
            self.daemon.until_state(name, "SUCCEEDED", patience_s=START_S)
        return {(place / "hash").read_text() for place in self._folders.values()}


def die_at_random(
    job: MemoryJob, deaths: int, seed: int, longest_s: float, others: Sequence[Callable[[int], None]] = ()
) -> list[str]:
    """Has workers die at moments that are drawn evenly from the first `longest_s` of their training; returns how.

    `others`: more ways to end the process of a pid.
    """
    moments = random.Random(seed)
    ways: list[str | Callable[[int], None]] = ["kill", "raise", "segv", "exit", "memory", *others]
    pid, died = None, []
    for number in range(deaths):
        pid = job.until_trains(but=pid)
        time.sleep(moments.uniform(0.0, longest_s))  # the moment itself
        way = ways[number % len(ways)]
        if isinstance(way, str):
            job.kill(way, pid)
        else:
            way(pid)
        died.append(way if isinstance(way, str) else way.__name__)
    job.until_trains(but=pid)
    return died


def figures(costs: Sequence[Repeated]) -> str:
    """What deaths cost, in words."""
    lengths = [cost.training_s for cost in costs]
    steps = [cost.steps for cost in costs]
    return (
        f"{len(costs)} deaths, trained again: median {statistics.median(lengths):.2f} s, most {max(lengths):.2f} s "
        f"(median {statistics.median(steps):.0f} steps, most {max(steps)})"
    )
