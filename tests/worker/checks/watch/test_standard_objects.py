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
import threading
import weakref
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.worker.checks.watch.test_step_watch import DATA, Run, evaluate


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
        (buffers, {"replay", "counts", "tape", "shared", "raw"}),
        (values_of_a_context, {"local.seen", "RATE"}),
        (weak_keys, {"velocity"}),
        (exact_numbers, {"rate", "share"}),
        (variable_of_the_environment, {"os.environ['TEMPERATURE_OF_A_TEST']"}),
        (cached_noise, {"noise_of"}),
        (late_phase, {"phase"}),
        (late_function, {"loss_of"}),
        (same_object_again, set()),
    ],
)
def test_what_a_loop_carries_outside_of_containers_is_named(loop: Callable[[Run], None], named: set[str]) -> None:
    run = Run()

    loop(run)

    assert set(run.named) == named


def test_object_of_the_standard_library_in_leave_out_is_not_named() -> None:
    replay: Any = queue.Queue()
    run = Run(replay)

    for batch in run.batches(DATA):
        replay.put(np.float64(batch))
        run.step_done(loss=replay.qsize())

    assert run.named == []
