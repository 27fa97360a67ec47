"""A result that an epoch's tail keeps in an attribute is named only if something reads it before the next tail does."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.worker.checks.watch.test_step_watch import DATA, Run
from worker.checks.loop_source import Entered


class Judge:
    """Judges what an epoch has learned."""

    def __init__(self) -> None:
        self.accuracy, self.best, self.by_class = 0.0, 0.0, dict[str, float]()

    def judge(self, epoch: int) -> float:
        return 1.0 - 0.5**epoch

    def rate(self) -> float:
        return 1.0 - self.best


@dataclass
class Record:
    """Compares, and so reads, all that it has."""

    accuracy: float = 0.0


def printed(run: Run, judge: Judge) -> None:
    for epoch in run.epochs(4):
        for batch in DATA:
            run.step_done(loss=batch)
        judge.accuracy, judge.by_class = judge.judge(epoch), {"a": epoch}
        print(f"{judge.accuracy} {judge.by_class}")


def printed_behind_steps_in_a_function(run: Run, judge: Judge) -> None:
    for epoch in run.epochs(4):
        judged_epoch(run, judge, epoch)


def judged_epoch(run: Run, judge: Judge, epoch: int) -> None:
    for batch in DATA:
        run.step_done(loss=batch)
    judge.accuracy = judge.judge(epoch)
    if judge.accuracy > 2:
        print("impossible")


def read_by_the_next_head(run: Run, judge: Judge) -> None:
    for epoch in run.epochs(4):
        rate = 1.0 - judge.accuracy
        for batch in DATA:
            run.step_done(loss=batch * rate)
        judge.accuracy = judge.judge(epoch)


def read_by_the_tail_before(run: Run, judge: Judge) -> None:
    for epoch in run.epochs(4):
        for batch in DATA:
            run.step_done(loss=batch)
        print(judge.accuracy < judge.judge(epoch))
        judge.accuracy = judge.judge(epoch)


def read_by_a_method(run: Run, judge: Judge) -> None:
    for epoch in run.epochs(4):
        for batch in DATA:
            run.step_done(loss=batch * (judge.rate() if epoch > 2 else 1))
        judge.best = judge.judge(epoch)


def read_by_a_lambda(run: Run, judge: Judge) -> None:
    for epoch in run.epochs(4):
        for batch in DATA:
            run.step_done(loss=(lambda batch=batch: batch * judge.accuracy) if epoch > 2 else batch)
        judge.accuracy = judge.judge(epoch)


def read_by_its_name(run: Run, judge: Judge) -> None:
    for epoch in run.epochs(4):
        for batch in DATA:
            run.step_done(loss=batch * (getattr(judge, "accuracy") if epoch > 2 else 1))  # noqa: B009
        judge.accuracy = judge.judge(epoch)


def copied_as_a_whole(run: Run, judge: Judge) -> None:
    for epoch in run.epochs(4):
        for batch in DATA:
            run.step_done(loss=copy.copy(judge) if epoch > 2 else batch)
        judge.accuracy = judge.judge(epoch)


def in_a_dataclass(run: Run, judge: Judge) -> None:
    record = Record()
    for epoch in run.epochs(4):
        for batch in DATA:
            run.step_done(loss=batch if epoch < 3 or record == Record() else 0)
        record.accuracy = judge.judge(epoch)


def changed_in_place(run: Run, judge: Judge) -> None:
    for epoch in run.epochs(4):
        for batch in DATA:
            run.step_done(loss=batch)
        judge.by_class["a"] = epoch


@pytest.mark.parametrize(
    ("loop", "named"),
    [
        (printed, []), (printed_behind_steps_in_a_function, []), (read_by_the_next_head, ["judge.accuracy"]),
        (read_by_the_tail_before, ["judge.accuracy"]), (read_by_a_method, ["judge.best"]),
        (read_by_a_lambda, ["judge.accuracy"]), (read_by_its_name, ["judge.accuracy"]),
        (copied_as_a_whole, ["judge.accuracy"]), (in_a_dataclass, ["record.accuracy"]),
        (changed_in_place, ["judge.by_class"]),
    ],
)  # fmt: skip
def test_result_of_a_tail_is_named_if_anything_may_read_it(
    loop: Callable[[Run, Judge], None], named: list[str]
) -> None:
    run = Run(entered=Entered(loop.__code__, loop.__code__.co_firstlineno))

    loop(run, Judge())

    assert run.named == named
