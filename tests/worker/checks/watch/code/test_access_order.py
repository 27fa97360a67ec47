"""Watching one step tells what it does first with which object's attribute, and leaves nothing behind that traces."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.worker.checks.watch.test_step_watch import DATA, Run
from worker.checks.watch.code.access_order import UNKNOWN, AccessOrder, named_in


def trace_of_a_debugger(*_: Any) -> None:
    """Traces no line."""


@pytest.mark.parametrize("is_first_ended_first", [True, False], ids=["first", "last"])
def test_of_two_watches_each_may_end_first(is_first_ended_first: bool) -> None:
    before = sys.gettrace()
    sys.settrace(trace_of_a_debugger)
    try:
        watches = [AccessOrder(()) for _ in range(2)]
        for watch in watches:
            watch.begin({"loss"}, [])

        for watch in watches if is_first_ended_first else reversed(watches):
            watch.end()
        (lambda: None)()  # a watch that was put back takes itself away at the next call

        assert sys.gettrace() is trace_of_a_debugger
    finally:
        sys.settrace(before)


class Shown:
    """Has what a step computes."""

    def __init__(self) -> None:
        self.value = 0.0

    def show(self, value: float) -> None:
        self.value = value


class ShownToo(Shown):
    """Has what an epoch computes."""


class Decayed:
    """Has what an epoch changes, under the same name."""

    def __init__(self) -> None:
        self.value = 0.1

    def decay(self) -> None:
        self.value *= 0.5


class Parts:
    """Has objects of these classes, and two of one class."""

    def __init__(self) -> None:
        self.shown, self.too, self.decayed, self.rate = Shown(), ShownToo(), Decayed(), Shown()
        self.step, self.called, self.norm = 0, 0.0, 0.0


def changed_in_an_object_of_another_class(run: Run, parts: Parts) -> None:
    for epoch in run.epochs(3):
        for batch in DATA:
            parts.shown.show(batch)
            run.step_done(loss=parts.decayed.value if epoch > 1 else parts.shown.value)
        parts.decayed.decay()


def changed_in_another_object_of_the_class(run: Run, parts: Parts) -> None:
    for _epoch in run.epochs(3):
        for number, batch in enumerate(DATA):
            parts.shown.value = batch
            loss = parts.shown.value * parts.rate.value
            if number == 2:
                parts.rate.value = batch
            run.step_done(loss=loss)


def changed_in_an_object_of_a_related_class(run: Run, parts: Parts) -> None:
    for _epoch in run.epochs(3):
        for batch in DATA:
            parts.shown.show(batch)
            run.step_done(loss=parts.shown.value)
        parts.too.show(sum(DATA))
        print(parts.too.value)


def assigned_from_the_same_name_of_the_run(run: Run, parts: Parts) -> None:
    for _epoch in run.epochs(3):
        for batch in DATA:
            parts.step = run.step
            run.step_done(loss=parts.step * batch)


def called_like_a_name_of_the_module(run: Run, parts: Parts) -> None:
    for _epoch in run.epochs(3):
        for batch in DATA:
            parts.called = called(batch)
            run.step_done(loss=parts.called)


class Gradient:
    """Has a method that is called like what a step computes."""

    def norm(self) -> float:
        return 2.0


def called_like_a_method_of_what_has_no_name(run: Run, parts: Parts) -> None:
    for _epoch in run.epochs(3):
        for batch in DATA:
            parts.norm = Gradient().norm() * batch
            run.step_done(loss=parts.norm)


def called(batch: float) -> float:
    return batch * 2


@pytest.mark.parametrize(
    ("loop", "named"),
    [
        (called_like_a_name_of_the_module, set()),
        (called_like_a_method_of_what_has_no_name, set()),
        (assigned_from_the_same_name_of_the_run, set()),
        (changed_in_an_object_of_another_class, {"parts.decayed.value"}),
        (changed_in_another_object_of_the_class, {"parts.rate.value"}),
        (changed_in_an_object_of_a_related_class, set()),
    ],
)
def test_attributes_of_one_name_are_told_apart_by_what_has_them(
    loop: Callable[[Run, Parts], None], named: set[str]
) -> None:
    run = Run()

    loop(run, Parts())

    assert set(run.named) == named


class Slotted:
    """Has its parts in slots, and one that is computed."""

    __slots__ = ("part",)

    def __init__(self) -> None:
        self.part = Shown()

    @property
    def computed(self) -> Shown:
        raise AssertionError("nothing that computes is asked")


def test_holder_is_found_in_slots_and_nothing_is_computed_for_it() -> None:
    slotted, other = Slotted(), Shown()
    order = AccessOrder(())

    def step() -> None:
        slotted.part.value = 1.0
        assert other.value == 0.0

    order.begin({"value"}, [])
    step()
    order.end()

    assert order.made_anew("value", id(slotted.part)) is True
    assert order.made_anew("value", id(other)) is False
    assert _named_in_frame(slotted, "computed") is None


def _named_in_frame(variable: Any, attribute: str) -> Any:
    found = named_in(sys._getframe(), ("variable", attribute))
    return None if found is UNKNOWN else found
