"""Records and kills a program that speaks the worker's protocol by itself and makes no run of the package `worker`.

Its steps are what the daemon shows of them, now and then, and it is killed from outside, about where that is planned.
"""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any

from supervisor.protocol import layout
from supervisor.protocol.proof import KillPlace
from supervisor.protocol.proof_plan import Begun, Killed, Line, PlannedKill, StepDone, damage_newest
from supervisor.prove.record import RunRecord
from supervisor.prove.scratch import RunFolder

KIND = "a program of its own kind"
POLL_S = 0.02
SAVE_S = 10.0  # for a save to begin after the step behind which it is waited for
LOOK_S = 0.0005
MOST_STEPS = 1000  # of a record that is made up


def undisturbed_record(last: int, took_s: float) -> RunRecord:
    """What is known of a run that was only seen to end at a step: its steps, as if all took as long."""
    stride = max(1, last // MOST_STEPS)
    steps = sorted({*range(stride, last, stride), last})
    lines = (StepDone(1, step, took_s * step / max(1, last), 0, 0) for step in steps)
    return RunRecord((Begun(1, 0, KIND, ""), *lines))


class OutsideKiller:
    """Kills the workers of one run as the daemon shows them to come to the planned steps."""

    def __init__(self, folder: RunFolder, kills: Sequence[PlannedKill]) -> None:
        self._folder = folder
        self._kills = list(enumerate(kills))
        self._lines: list[Line] = []
        self._attempt = 0
        self._step = -1

    @property
    def record(self) -> RunRecord:
        """What happened so far."""
        return RunRecord(tuple(self._lines))

    def on_status(self, status: dict[str, Any]) -> None:
        """Records the newest step; kills the worker if one is planned there."""
        job, pid = status["job"], status["pid"]
        if status["state"] != "RUNNING" or job["step"] is None or pid is None:
            return
        attempt, step = job["attempt"], job["step"]
        if attempt != self._attempt:
            self._attempt, self._step = attempt, -1
            name = layout.parse_name(job["restored"] or "")
            self._lines.append(Begun(attempt, 0 if name is None else name.step, KIND, ""))
        if step != self._step:
            self._step = step
            self._lines.append(StepDone(attempt, step, time.monotonic(), 0, 0))
        if self._kills and step >= self._kills[0][1].step:
            self._kill(pid, step)

    def _kill(self, pid: int, step: int) -> None:
        number, kill = self._kills.pop(0)
        if kill.place is KillPlace.SAVE:
            until = time.monotonic() + SAVE_S
            while not any(self._saves()) and time.monotonic() < until:
                time.sleep(LOOK_S)
        damaged = damage_newest(self._folder.checkpoints) if kill.damages else None
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:  # it has ended meanwhile, so that nothing was killed
            return
        self._lines.append(Killed(self._attempt, number, step, damaged))

    def _saves(self) -> Iterator[str]:
        return (path.name for path in self._folder.checkpoints.iterdir() if layout.is_partial(path.name))
