"""When a periodic save is due."""

import pytest

from supervisor.protocol.launch import Interval
from worker.cadence import FIRST_PAUSE_S, MAX_PAUSE_S, Cadence


def every(steps: int | None = None, seconds: float | None = None, saved_step: int = 0) -> Cadence:
    return Cadence(Interval(steps=steps, seconds=seconds), saved_step, saved_at=100.0)


@pytest.mark.parametrize(("saved_step", "step", "due"), [(0, 9, False), (0, 10, True), (7, 10, True), (10, 19, False)])
def test_steps_are_due_at_multiples_whenever_the_last_save_was(saved_step: int, step: int, due: bool) -> None:
    assert every(steps=10, saved_step=saved_step).is_due(step, now=100.0) is due


def test_seconds_count_from_the_last_save() -> None:
    cadence = every(seconds=60.0)
    cadence.begun(step=5, now=130.0)

    assert not cadence.is_due(6, now=189.0)
    assert cadence.is_due(6, now=190.0)


def test_failed_save_is_tried_again_after_a_pause_that_grows() -> None:
    cadence = every(steps=1)
    cadence.failed(now=100.0)
    first = cadence.is_due(2, now=100.0 + FIRST_PAUSE_S - 1), cadence.is_due(2, now=100.0 + FIRST_PAUSE_S)
    cadence.failed(now=200.0)
    second = cadence.is_due(3, now=200.0 + FIRST_PAUSE_S), cadence.is_due(3, now=200.0 + 2 * FIRST_PAUSE_S)

    assert (first, second) == ((False, True), (False, True))


def test_pause_after_many_failures_has_an_end() -> None:
    cadence = every(steps=1)
    for _ in range(5000):
        cadence.failed(now=0.0)

    assert cadence.is_due(2, now=MAX_PAUSE_S)
