"""How long the demonstration waits: as long as its job makes progress, whatever else the machine does."""

from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import pytest

from examples.demo import STALLED_S, DemoFailed, watch


class Machine:
    """Time that passes only while the demonstration waits, and jobs that are asked after in that time."""

    def __init__(self, steps: Iterator[int]) -> None:
        self.now = 0.0
        self._steps = steps

    def clock(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += STALLED_S / 10

    def ask(self, name: str) -> dict[str, Any]:
        job = {"attempt": 1, "section": "step", "step": next(self._steps)}
        return {"state": "RUNNING", "pid": 7, "job": job, "description": "pid 7", "reason": None}


def test_slow_job_is_waited_for_as_long_as_its_steps_come():
    machine = Machine(step // 9 for step in count())

    looks = list(islice(watch("undisturbed", machine.ask, machine.clock, machine.pause), 1000))

    assert looks[-1]["job"]["step"] == 111
    assert machine.now > 90 * STALLED_S


def test_wait_ends_when_the_job_makes_no_more_progress():
    machine = Machine(min(step, 5) for step in count())

    with pytest.raises(DemoFailed, match="undisturbed made no progress for 170 s; its status is pid 7"):
        list(watch("undisturbed", machine.ask, machine.clock, machine.pause))

    assert 5 < machine.now / STALLED_S * 10 <= 17


def test_wait_ends_when_the_job_has_failed():
    machine = Machine(count())
    failed = machine.ask("undisturbed") | {"state": "FAILED", "reason": "no disk"}

    with pytest.raises(DemoFailed, match="undisturbed failed: no disk"):
        list(watch("undisturbed", lambda _: failed, machine.clock, machine.pause))
