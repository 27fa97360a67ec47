"""What a loop carries in objects of the standard library, and the objects to which it binds its names, are named."""

import argparse
import array
import collections
import contextvars
import ctypes
import enum
import functools
import io
import multiprocessing
import os
import queue
import random
import sys
import threading
import weakref
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.worker.checks.watch.test_step_watch import DATA, Run, evaluate
from worker.checks.findings import Finding
from worker.checks.watch.carried_values import CarriedValue, findings_of
from worker.checks.watch.step_watch import StepWatch
from worker.log_file import LogFile
from worker.state.run_state import RunState


def settings(run: Run) -> None:
    args, config = argparse.Namespace(noise=1.0), collections.UserDict(rate=1.0)
    for batch in run.batches(DATA):
        args.noise *= 0.5
        config["rate"] *= 0.5
        run.step_done(loss=batch * args.noise * config["rate"])


def settings_made_anew(run: Run) -> None:
    args = argparse.Namespace(noise=1.0)
    for step, batch in enumerate(run.batches(DATA)):
        args.noise = 0.5**step
        run.step_done(loss=batch * args.noise)


def spawned_generators(run: Run) -> None:
    seeds = np.random.SeedSequence(5)
    for batch in run.batches(DATA):
        run.step_done(loss=batch * np.random.default_rng(seeds.spawn(1)[0]).random())


def buffers(run: Run) -> None:
    replay: queue.Queue[float] = queue.Queue()
    counts, tape, shared = array.array("d", [0.0, 0.0]), io.StringIO(), multiprocessing.Value("d", 1.0)
    raw = (ctypes.c_double * 2)()
    for batch in run.batches(DATA):
        replay.put(batch)
        counts[0] += batch
        tape.write(str(batch))
        shared.value *= 0.5
        raw[1] += batch
        run.step_done(loss=sum(counts) + len(tape.getvalue()) + shared.value + replay.qsize() + raw[1])


RATE = contextvars.ContextVar("RATE", default=1.0)


def values_of_a_context(run: Run) -> None:
    local = threading.local()
    local.seen = 0
    for batch in run.batches(DATA):
        local.seen += 1
        RATE.set(RATE.get() * 0.5)
        run.step_done(loss=batch * RATE.get() + local.seen)


class Parameter:
    """A weight, with which an optimizer's state is kept."""


def weak_keys(run: Run) -> None:
    parameter = Parameter()
    velocity: weakref.WeakKeyDictionary[Parameter, float] = weakref.WeakKeyDictionary()
    for batch in run.batches(DATA):
        velocity[parameter] = 0.9 * velocity.get(parameter, 0.0) + batch
        run.step_done(loss=velocity[parameter])


def exact_numbers(run: Run) -> None:
    rate, share = Decimal(1), Fraction(1)
    for batch in run.batches(DATA):
        run.step_done(loss=batch * float(rate) * float(share))
        rate, share = rate / 2, share / 2


def variable_of_the_environment(run: Run) -> None:
    os.environ["TEMPERATURE_OF_A_TEST"] = "1.0"
    for batch in run.batches(DATA):
        run.step_done(loss=batch * float(os.environ["TEMPERATURE_OF_A_TEST"]))
        os.environ["TEMPERATURE_OF_A_TEST"] = str(float(os.environ["TEMPERATURE_OF_A_TEST"]) / 2)
    del os.environ["TEMPERATURE_OF_A_TEST"]


@functools.cache
def noise_of(group: int) -> float:
    return random.random() * group


@functools.cache
def square_of(number: int) -> int:
    return number * number


def cached_noise(run: Run) -> None:
    noise_of.cache_clear()
    for step, batch in enumerate(run.batches(DATA)):
        run.step_done(loss=batch + noise_of(step) + square_of(step))


class Phase(enum.Enum):
    """Of a training."""

    FIRST = 1
    SECOND = 2


def late_phase(run: Run) -> None:
    phase = Phase.FIRST
    for epoch in run.epochs(2):
        for batch in run.batches(DATA):
            run.step_done(loss=batch * phase.value)
        if epoch > 7:
            phase = Phase.SECOND


def absolute(loss: float = 1.0) -> float:
    return abs(loss)


def late_function(run: Run) -> None:
    loss_of = evaluate
    for epoch in run.epochs(2):
        for batch in run.batches(DATA):
            run.step_done(loss=loss_of(batch))
        if epoch > 7:
            loss_of = absolute


class Net:
    """A model that methods return again."""

    def trained(self, batch: float) -> "Net":
        del batch
        return self


def make_step(factor: float) -> Callable[[float], float]:
    return lambda batch: batch * factor


def late_step(run: Run) -> None:
    step, bound = make_step(1.0), evaluate
    for epoch in run.epochs(5):
        if epoch == 4:
            step = make_step(0.1)
        bound = bound or evaluate
        for batch in run.batches(DATA):
            run.step_done(loss=bound(step(batch)))


def same_object_again(run: Run) -> None:
    model = Net()
    for batch in run.batches(DATA):
        model = model.trained(batch)
        run.step_done()


@pytest.mark.parametrize(
    ("loop", "named"),
    [
        (settings, {"args.noise", "config"}),
        (settings_made_anew, set()),
        (spawned_generators, {"seeds.n_children_spawned"}),
        (buffers, {"replay", "counts", "tape", "shared", "raw"}),
        (values_of_a_context, {"local.seen", "RATE"}),
        (weak_keys, {"velocity"}),
        (exact_numbers, {"rate", "share"}),
        (variable_of_the_environment, {"os.environ['TEMPERATURE_OF_A_TEST']"}),
        (cached_noise, {"noise_of"}),
        (late_phase, {"phase"}),
        (late_function, {"loss_of"}),
        (late_step, {"step"}),
        (same_object_again, set()),
    ],
)
def test_what_a_loop_carries_outside_of_containers_is_named(loop: Callable[[Run], None], named: set[str]) -> None:
    run = Run()

    loop(run)

    assert set(run.named) == named


class Frame:
    """What the watch needs of a data frame of pandas."""

    iloc = columns = property(lambda self: None)

    def __init__(self) -> None:
        self.rows: list[list[float]] = []

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), 2


class _Cells:
    """`frame.iloc`: by steps over rows, or one column."""

    def __init__(self, rows: list[list[float]]) -> None:
        self._rows = rows

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            part = Frame()
            part.rows = self._rows[place]
            return part
        return SimpleNamespace(to_numpy=lambda: np.array([row[place[1]] for row in self._rows]))


Frame.iloc = property(lambda self: _Cells(self.rows))  # type: ignore[assignment]
Frame.__module__ = "pandas"


@pytest.mark.parametrize("change", [lambda rows: rows.append([1.0, 2.0]), lambda rows: rows[0].reverse()])
def test_data_frame_that_changes_is_named(change: Callable[[Any], None]) -> None:
    run, log = Run(), Frame()
    log.rows.append([0.0, 1.0])

    for batch in run.batches(DATA):
        change(log.rows)
        run.step_done(loss=batch + log.shape[0])

    assert run.named == ["log"]


@pytest.mark.thorough
def test_model_of_a_package_that_learns_batch_by_batch_is_named() -> None:
    from sklearn.linear_model import SGDClassifier  # takes a second, which collecting the tests need not

    run, probe = Run(), SGDClassifier(random_state=0)

    for batch in run.batches(DATA):
        probe.partial_fit([[batch], [-batch]], [0, 1], classes=[0, 1])
        run.step_done(loss=batch)

    assert {"probe.coef_", "probe.t_"} <= set(run.named)


def read_lines(file: Any) -> None:
    file.readline()


def read_further(file: Any) -> None:
    next(file)


@pytest.mark.parametrize(
    ("mode", "read"), [("r", read_lines), ("r", read_further), ("rb", read_lines), ("rb", lambda file: file.read(3))]
)
def test_file_that_steps_read_further_is_named(tmp_path: Path, mode: str, read: Callable[[Any], None]) -> None:
    path, run = tmp_path / "data", Run()
    path.write_text("".join(f"{number}\n" * 1000 for number in range(40)))

    with path.open(mode) as file:
        for batch in run.batches(DATA):
            for _ in range(2000):  # a text file says where it is only after thousands of bytes, where next() is used
                read(file)
            run.step_done(loss=batch)

    assert run.named == ["file"]


def read_round(file: Any) -> None:
    if not file.readline():
        file.seek(0)


def read_round_behind_head(file: Any) -> None:
    if not file.readline():
        file.seek(2, 0)


@pytest.mark.parametrize("read", [read_round, read_round_behind_head])
def test_file_that_begins_again_at_its_end_is_named(tmp_path: Path, read: Callable[[Any], None]) -> None:
    path, run = tmp_path / "data", Run()
    path.write_text("\n".join("1234567"))

    with path.open() as file:
        for batch in run.batches(DATA):
            read(file)
            run.step_done(loss=batch)

    assert run.named == ["file"]


def test_file_is_not_named_where_the_script_seeks_or_only_writes(tmp_path: Path) -> None:
    path, run = tmp_path / "data", Run()
    path.write_text("1 2 3")

    with path.open("rb") as file, (tmp_path / "table").open("a") as table, (tmp_path / "store").open("wb+") as store:
        for batch in run.batches(DATA):
            file.seek(run.step)
            file.read(1)
            table.write("row\n")
            store.write(b"record")
            run.step_done(loss=batch)

    assert run.named == []


def test_log_file_that_the_state_lacks_is_named(tmp_path: Path) -> None:
    run, log = Run(), LogFile(tmp_path / "loss.csv")

    for batch in run.batches(DATA):
        log.write("row\n")
        run.step_done(loss=batch)

    assert run.named == ["log"]


def test_queue_is_not_to_be_put_into_the_state_as_it_is() -> None:
    waiting: queue.Queue[float] = queue.Queue()
    watch = StepWatch(lambda kept: None, (), RunState())
    found: list[Finding] = []

    for step in range(3):
        waiting.put(1.0)
        found += watch.look(step, 0, sys._getframe())
    watch.close()

    (finding,) = [finding for finding in found if finding.name.startswith("waiting ")]
    assert "read ahead in the data, before run.batches" in finding.remedy
    assert "list(waiting.queue) in run.state" in finding.remedy


@pytest.mark.parametrize(("kind", "code"), [
    ("queue", "list(reader.held.queue)"), ("file", '["held"] = reader.held.tell()'), ("log", '{"held": reader.held}'),
    ("drawn", "run.order(reader.held)"),
])  # fmt: skip
def test_remedy_names_the_object_as_the_script_does(kind: str, code: str) -> None:
    (finding,) = findings_of([CarriedValue("reader.held", "reader.held", is_library=False, kind=kind)])

    assert code in finding.remedy


def test_object_of_the_standard_library_in_leave_out_is_not_named() -> None:
    replay: Any = queue.Queue()
    run = Run(replay)

    for batch in run.batches(DATA):
        replay.put(np.float64(batch))
        run.step_done(loss=replay.qsize())

    assert run.named == []
