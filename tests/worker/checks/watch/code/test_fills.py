"""Buffers that each step fills whole before anything reads them are no state; any other array is."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from tests.worker.checks.watch.test_step_watch import DATA, Run

T = 3
rewards = np.zeros(T)


def filled_by_number(run: Run) -> None:
    rewards = np.zeros(T)
    for batch in run.batches(DATA):
        for t in range(T):
            rewards[t] = batch + t
        run.step_done(loss=rewards.mean())


def filled_from_the_end(run: Run) -> None:
    returns, running = np.zeros((T, 2)), 0.0
    for batch in run.batches(DATA):
        running = 0.0
        for t in reversed(range(len(returns))):
            running = batch + 0.9 * running
            returns[t, :] = running
        run.step_done(loss=returns.mean())


def filled_at_once(run: Run) -> None:
    mask, noise, order = np.ones(T), np.zeros(T), [0.0] * T
    for batch in run.batches(DATA):
        mask[:] = batch
        noise.fill(batch)
        for t in range(0, 3):
            order[t] = batch * t
        run.step_done(loss=(mask + noise).sum() + sum(order))


def filled_by_a_function(run: Run) -> None:
    storage = SimpleNamespace(rewards=np.zeros(T))
    for batch in run.batches(DATA):
        collect(storage, batch)
        run.step_done(loss=storage.rewards.mean())


def collect(storage: SimpleNamespace, batch: float) -> None:
    for t in range(T):
        storage.rewards[t] = batch + t


def read_before(run: Run) -> None:
    rewards = np.zeros(T)
    for batch in run.batches(DATA):
        mean = rewards.mean()
        for t in range(T):
            rewards[t] = batch + t
        run.step_done(loss=mean)


def read_while_filled(run: Run) -> None:
    rewards = np.zeros(T)
    for batch in run.batches(DATA):
        for t in range(T):
            rewards[t] = batch + rewards[t - 1]
        run.step_done(loss=rewards.mean())


def filled_in_part(run: Run) -> None:
    rewards = np.zeros(T)
    for batch in run.batches(DATA):
        for t in range(T - 1):
            rewards[t] = batch + t
        run.step_done(loss=rewards.mean())


def filled_until_the_end_of_an_episode(run: Run) -> None:
    rewards = np.zeros(T)
    for batch in run.batches(DATA):
        for t in range(T):
            if t > batch:
                break
            rewards[t] = batch + t
        run.step_done(loss=rewards.mean())


def filled_sometimes(run: Run) -> None:
    rewards = np.zeros(T)
    for batch in run.batches(DATA):
        if batch != 2.0:
            rewards[:] = batch
        run.step_done(loss=rewards.mean())


def added_to(run: Run) -> None:
    rewards = np.zeros(T)
    for batch in run.batches(DATA):
        for t in range(T):
            rewards[t] += batch
        run.step_done(loss=rewards.mean())


def read_by_a_function_before(run: Run) -> None:
    for batch in run.batches(DATA):
        mean = mean_of_rewards()
        for t in range(T):
            rewards[t] = batch + t
        run.step_done(loss=mean)


def mean_of_rewards() -> float:
    return float(rewards.mean())


def read_behind_the_data(run: Run) -> None:
    rewards = np.zeros(T)
    for _epoch in run.epochs(2):
        for batch in run.batches(DATA):
            rewards[:] = batch
            run.step_done(loss=rewards.mean())
        print(rewards.mean())


@pytest.mark.parametrize("loop", [filled_by_number, filled_from_the_end, filled_at_once, filled_by_a_function])
def test_what_each_step_fills_is_not_named(loop: Callable[[Run], None]) -> None:
    run = Run()
    loop(run)

    assert run.named == []


@pytest.mark.parametrize(
    "loop",
    [
        read_before, read_while_filled, filled_in_part, filled_until_the_end_of_an_episode, filled_sometimes, added_to,
        read_by_a_function_before, read_behind_the_data,
    ],
)  # fmt: skip
def test_what_a_step_reads_before_it_is_filled_is_named(loop: Callable[[Run], None]) -> None:
    run = Run()
    loop(run)

    assert run.named == ["rewards"]
