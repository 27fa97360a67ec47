"""What the head of an epoch, or what stands before the loops, takes from the state comes out otherwise after a restart:
it is named then.
"""

import contextlib
import enum
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from supervisor.protocol import layout
from supervisor.protocol.wire.launch import Launch
from tests.worker.histories import Died, History
from worker.checks.watch import look_times
from worker.files import FilesRun


class Phase(enum.Enum):
    """Of a training."""

    EARLY = 1
    LATE = 2


class Rate:
    """An object of the script's, whose attribute each head sets."""

    value: float | None = 0.0


RATE = Rate()


@pytest.fixture(autouse=True)
def _attempt(begin: Callable[[Launch], None]) -> None:
    begin(Launch())


def copy_of_the_state(run: FilesRun, history: History, dies_at: int) -> None:
    for _ in run.epochs(2):
        anchor = np.array([float(len(history.done))])
        for number in run.range(4):
            step(run, history, number + float(anchor[0]), dies_at)


def attribute_from_the_state(run: FilesRun, history: History, dies_at: int) -> None:
    for _ in run.epochs(2):
        RATE.value = 1000.0 * len(history.done)
        for number in run.range(4):
            step(run, history, number * RATE.value, dies_at)


def member_of_an_enumeration(run: FilesRun, history: History, dies_at: int) -> None:
    for _ in run.epochs(2):
        phase = Phase.LATE if len(history.done) > 5 else Phase.EARLY
        for number in run.range(4):
            step(run, history, number * phase.value, dies_at)


def truth_of_numpy(run: FilesRun, history: History, dies_at: int) -> None:
    for _ in run.epochs(2):
        is_late = np.array([len(history.done)]).sum() > 5
        for number in run.range(4):
            step(run, history, number if is_late else 2 * number, dies_at)


def none_or_a_number(run: FilesRun, history: History, dies_at: int) -> None:
    for _ in run.epochs(2):
        limit = None if len(history.done) > 5 else 2
        for number in run.range(4):
            step(run, history, number if limit is None else min(number, limit), dies_at)


def filled_by_the_first_step_with_what_comes_again(run: FilesRun, history: History, dies_at: int) -> None:
    for epoch in run.epochs(2):
        RATE.value = None
        for number in run.range(4):
            if RATE.value is None:
                RATE.value = 0.5**epoch
            step(run, history, number * RATE.value, dies_at)


def filled_by_the_first_step_with_its_number(run: FilesRun, history: History, dies_at: int) -> None:
    for _ in run.epochs(2):
        RATE.value = None
        for number in run.range(4):
            if RATE.value is None:
                RATE.value = number + 1.0
            step(run, history, number * RATE.value, dies_at)


def text_that_a_start_finds(run: FilesRun, history: History, dies_at: int) -> None:
    found = None if dies_at > 0 else "what the start before has left"
    for number in run.range(8):
        step(run, history, float(number), dies_at)
        print(found)


def argument_from_the_state(run: FilesRun, history: History, dies_at: int) -> None:
    for _ in run.epochs(2):
        one_epoch(run, history, 0.1 * len(history.done), dies_at)


def one_epoch(run: FilesRun, history: History, rate: float, dies_at: int) -> None:
    for number in run.range(4):
        step(run, history, number * rate, dies_at)


def kept_in_the_state_of_the_run(run: FilesRun, history: History, dies_at: int) -> None:
    for _ in run.epochs(2):
        run.state["anchor"] = float(len(history.done))
        for number in run.range(4):
            step(run, history, number + run.state["anchor"], dies_at)


def from_the_numbers_of_the_loop(run: FilesRun, history: History, dies_at: int) -> None:
    for epoch in run.epochs(2):
        rate, begun_at = 0.1 * 0.9**epoch, run.step
        for number in run.range(4):
            step(run, history, number * rate + begun_at, dies_at)


def read_by_the_head_alone(run: FilesRun, history: History, dies_at: int) -> None:
    for _ in run.epochs(2):
        size = len(history.done)
        print(f"{size} are done")
        for number in run.range(4):
            step(run, history, float(number), dies_at)


def object_that_a_function_is_called_with(run: FilesRun, history: History, dies_at: int) -> None:
    rate = rate_of(dies_at)  # as what a start is given
    for _ in run.epochs(2):
        one_epoch_with(run, history, rate, dies_at)


def rate_of(number: int) -> Rate:
    rate = Rate()
    rate.value = float(number)
    return rate


def one_epoch_with(run: FilesRun, history: History, rate: Rate, dies_at: int) -> None:
    for number in run.range(4):
        step(run, history, float(number), dies_at)
        assert rate


def made_before_the_loops(run: FilesRun, history: History, dies_at: int) -> None:
    all_steps(run, history, 0.1 * len(history.done), dies_at)


def all_steps(run: FilesRun, history: History, rate: float, dies_at: int) -> None:
    for number in run.range(8):
        step(run, history, number * rate, dies_at)


def attribute_set_before_the_loops(run: FilesRun, history: History, dies_at: int) -> None:
    RATE.value = 1000.0 * len(history.done)
    for number in run.range(8):
        step(run, history, number * RATE.value, dies_at)


def made_at_the_first_start(run: FilesRun, history: History, dies_at: int) -> None:
    if run.step == 0:
        run.state["rate"] = 0.1 * len(history.done)
    for number in run.range(8):
        step(run, history, number * run.state["rate"], dies_at)


def the_same_at_each_start(run: FilesRun, history: History, dies_at: int) -> None:
    size = 8
    for number in run.range(size):
        step(run, history, number * size, dies_at)


def rate_that_begins_with_the_start(run: FilesRun, history: History, dies_at: int) -> None:
    begun = run.step
    for number in run.range(8):
        rate = 1 / (1 + run.step - begun)
        step(run, history, number * rate, dies_at)


def rate_chosen_by_the_start(run: FilesRun, history: History, dies_at: int) -> None:
    begun = run.step
    for number in run.range(8):
        rate = 1.0
        if run.step - begun < 3:
            rate = 0.1
        step(run, history, number * rate, dies_at)


def steps_from_the_start_that_are_given(run: FilesRun, history: History, dies_at: int) -> None:
    all_steps_from(run, history, run.step, dies_at=dies_at)


def all_steps_from(run: FilesRun, history: History, begun: int, *, dies_at: int) -> None:
    for number in run.range(8):
        history.done.append(warm(run.step - begun) * number)
        end_step(run, dies_at)


def warm(done: int) -> float:
    return min(1.0, done / 4)


class Warm:
    """Has where the start was, and its own rate."""

    def __init__(self) -> None:
        self.begun, self.at, self.step = 0, 0.0, 0

    def rate(self, step: int) -> float:
        return 1 / (1 + step - self.begun)


WARM = Warm()


def attribute_of_the_start(run: FilesRun, history: History, dies_at: int) -> None:
    WARM.begun = run.step
    for number in run.range(8):
        step(run, history, number * WARM.rate(run.step), dies_at)


def rate_of_a_closure(run: FilesRun, history: History, dies_at: int) -> None:
    begun, began_at = run.step, Warm()
    began_at.at = time.perf_counter()

    def rate() -> float:
        return 1 / (1 + run.step - begun)

    for number in run.range(8):
        step(run, history, number * rate(), dies_at)


def entry_chosen_by_the_start(run: FilesRun, history: History, dies_at: int) -> None:
    begun = run.step
    for number in run.range(8):
        history.done.append(float(number))
        if run.step - begun >= 3:
            history.done[number] += 1
        history.done[(run.step - begun) % len(history.done)] += 0.5
        end_step(run, dies_at)


def attribute_of_the_start_that_is_shown(run: FilesRun, history: History, dies_at: int) -> None:
    WARM.begun = run.step
    for number in run.range(8):
        WARM.step = run.step - WARM.begun
        report(WARM.step)
        step(run, history, float(number + run.step), dies_at)


def report(done: int) -> None:
    if done % 2:
        print(f"{done} steps since the start")


def counts_from_the_start_that_are_shown(run: FilesRun, history: History, dies_at: int) -> None:
    begun, began_at = run.step, time.perf_counter()
    left = 8 - begun
    for number in run.range(8):
        step(run, history, float(number), dies_at)
        done = run.step - begun
        speed = done / (time.perf_counter() - began_at)
        shown = f"{done} of {left}"
        if done == 2:
            print(shown, speed)


def speed_that_decides(run: FilesRun, history: History, dies_at: int) -> None:
    begun, began_at = run.step, time.perf_counter()
    for number in run.range(8):
        speed = (run.step - begun) / (time.perf_counter() - began_at)
        step(run, history, number + min(speed, 0.0), dies_at)


def numbers_that_the_start_is_added_to(run: FilesRun, history: History, dies_at: int) -> None:
    begun = run.step
    left = 8 - begun
    for number in range(left):
        step(run, history, 1 / (1 + begun + number), dies_at)


def numbers_from_the_start(run: FilesRun, history: History, dies_at: int) -> None:
    begun = run.step
    for number in range(begun, 8):
        step(run, history, float(number), dies_at)


def step(run: FilesRun, history: History, done: float, dies_at: int) -> None:
    history.done.append(done)
    end_step(run, dies_at)


def end_step(run: FilesRun, dies_at: int) -> None:
    if run.step == dies_at:
        raise Died
    run.step_done()


Script = Callable[[FilesRun, History, int], None]


def train(script: Script, folder: Path, dies_at: int) -> list[float]:
    history, RATE.value = History(), 0.0
    with FilesRun(history, directory=folder, interval="1 steps") as run:
        script(run, history, dies_at)
    return history.done


CASES: list[tuple[Script, str | None]] = [
    (copy_of_the_state, "anchor"), (attribute_from_the_state, "RATE.value"), (argument_from_the_state, "rate"),
    (member_of_an_enumeration, "phase"), (truth_of_numpy, "is_late"), (none_or_a_number, "limit"),
    (filled_by_the_first_step_with_what_comes_again, None),
    (filled_by_the_first_step_with_its_number, "RATE.value"), (text_that_a_start_finds, None),
    (kept_in_the_state_of_the_run, None), (from_the_numbers_of_the_loop, None), (read_by_the_head_alone, None),
    (object_that_a_function_is_called_with, None), (made_before_the_loops, "rate (before the loops)"),
    (attribute_set_before_the_loops, "RATE.value (test_head_values.py"), (made_at_the_first_start, None),
    (the_same_at_each_start, None), (rate_that_begins_with_the_start, "begun (before the loops)"),
    (rate_chosen_by_the_start, "begun (before the loops)"),
    (steps_from_the_start_that_are_given, "begun (before the loops)"),
    (rate_of_a_closure, "begun (before the loops)"), (entry_chosen_by_the_start, "begun (before the loops)"),
    (attribute_of_the_start, "WARM.begun (test_head_values.py"), (attribute_of_the_start_that_is_shown, None),
    (counts_from_the_start_that_are_shown, None), (speed_that_decides, None), (numbers_from_the_start, None),
    (numbers_that_the_start_is_added_to, None),
]  # fmt: skip
FOR_EVERY_EDIT = (
    copy_of_the_state, argument_from_the_state, made_before_the_loops, rate_of_a_closure, kept_in_the_state_of_the_run,
    counts_from_the_start_that_are_shown,
)  # fmt: skip


@pytest.mark.parametrize(
    ("script", "name"),
    [pytest.param(*case, marks=() if case[0] in FOR_EVERY_EDIT else pytest.mark.thorough) for case in CASES],
)
def test_what_a_head_makes_otherwise_in_the_middle_of_the_epoch_is_named(
    script: Script, name: str | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = train(script, tmp_path / "undisturbed", -1)
    with pytest.raises(Died):
        train(script, tmp_path / "job", 6)
    for thread in threading.enumerate():
        if thread.name == "stepkeeper-set-once":
            thread.join(60)
    assert "cannot resume exactly" not in capfd.readouterr().err

    done = train(script, tmp_path / "job", -1)

    said = [line for line in capfd.readouterr().err.splitlines() if "cannot resume exactly" in line]
    assert (done == expected) == (name is None)
    assert [name is not None and f"cannot resume exactly: {name}" in line for line in said] == [True] * (
        name is not None
    )


def test_values_of_an_epoch_that_the_watch_did_not_look_at_are_not_compared(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look_times, "SHARE", 0.0)
    monkeypatch.setattr(look_times, "LOOK_S", 0.0)  # so it looks at the first three steps, and at none of epoch 1

    for dies_at in (6, -1):
        with contextlib.suppress(Died):
            train(from_the_numbers_of_the_loop, tmp_path, dies_at)

    assert "cannot resume exactly" not in capfd.readouterr().err


def test_what_the_steps_set_is_none_of_a_heads(tmp_path: Path) -> None:
    """So trainings that end alike have checkpoints that are alike, wherever a restart began."""
    rate = Rate()
    with FilesRun(History(), directory=tmp_path, interval="1 steps") as run:
        for epoch in run.epochs(2):
            scale = 2.0**epoch
            for number in run.range(3):
                rate.value = loss = number * scale
                run.step_done(loss=rate.value)
                print(loss)

    bodies = [json.loads((folder / layout.STATE).read_text())["body"] for folder in sorted(tmp_path.glob("step-*"))]
    assert [(body["epoch"], body["step"]) for body in bodies[-4:]] == [(0, 0), (1, 3), (1, 3), (1, 3)]
    assert [sorted(body["made"]) for body in bodies] == [["scale"]] * len(bodies)


def test_what_a_loop_around_the_run_assigns_is_none_of_its_heads(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for dies_at in (6, -1):
        with contextlib.suppress(Died), FilesRun(History(), directory=tmp_path, interval="1 steps") as run:
            for _ in run.epochs(2):
                for _ in run.range(4):
                    if run.step == dies_at:
                        raise Died
                    run.step_done()

    assert "cannot resume exactly" not in capfd.readouterr().err


def read_by_the_tail(run: FilesRun, history: History, dies_at: int) -> None:
    for _ in run.epochs(3):
        before = len(history.done)
        for number in run.range(4):
            step(run, history, float(number), dies_at)
        if len(history.done) > before:
            history.done.append(-1.0)


@pytest.mark.parametrize(("script", "is_named"), [(copy_of_the_state, False), (read_by_the_tail, True)])
def test_behind_the_last_step_of_an_epoch_only_its_tail_can_use_what_the_head_makes(
    script: Script, is_named: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = train(script, tmp_path / "undisturbed", -1)
    with pytest.raises(Died):
        train(script, tmp_path / "job", 4)

    assert (train(script, tmp_path / "job", -1) == expected) != is_named
    assert ("cannot resume exactly" in capfd.readouterr().err) == is_named
