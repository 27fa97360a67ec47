"""What stands where few look is named: attributes of lists, functions of classes, caches, coroutines, queues."""

import asyncio
import functools
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any

import pytest

from tests.worker.checks.watch.test_step_watch import Run
from worker.state.run_state import RunState


class Ring(list[int]):
    """A memory that is overwritten in a ring."""

    position = 0


class Private:
    """Slots whose names Python changes."""

    __slots__ = ("__count",)

    def __init__(self) -> None:
        self.__count = 0

    def next(self) -> int:
        self.__count += 1
        return self.__count


class Explore:
    """A policy."""

    def act(self) -> int:
        return 1


class Exploit(Explore):
    """Another policy."""


def list_with_an_attribute(run: Run) -> None:
    ring = Ring([0, 0])
    ring.position = 0
    for _ in range(3):
        ring.position += 1
        assert ring.position
        run.step_done()


def private_slot(run: Run) -> None:
    private = Private()
    for _ in range(3):
        assert private.next()
        run.step_done()


def class_of_an_object(run: Run) -> None:
    policy = Explore()
    for step in range(3):
        assert policy.act()
        if step == 1:
            policy.__class__ = Exploit
        run.step_done()


def method_of_a_class(run: Run) -> None:
    class Agent:
        def act(self) -> int:
            return 1

    agent = Agent()
    for step in range(3):
        assert agent.act()
        if step == 1:
            Agent.act = lambda self: 2  # type: ignore[method-assign]
        run.step_done()


class Rated:
    """Has a function that steps replace by another one of the same `lambda`."""

    def __init__(self) -> None:
        self.rate: Callable[[], float] = lambda: 1.0


def function_with_another_default(run: Run) -> None:
    model = Rated()
    for step in range(5):
        if step % 2 == 0:
            larger = model.rate() + 1
            model.rate = lambda rate=larger: rate
        run.step_done(loss=model.rate())


def plain_loss() -> int:
    return 1


def other_loss() -> int:
    return 2


loss = plain_loss


def update() -> int:
    return loss()


def use(function: Callable[[], int]) -> None:
    global loss
    loss = function


def function_that_another_one_calls(run: Run) -> None:
    use(plain_loss)
    for step in range(3):
        update()
        if step == 1:
            use(other_loss)
        run.step_done()


def keep(run: Run, words: Any) -> None:
    run.state = RunState({"words": words})


def numbers_of_new_words(run: Run) -> None:
    numbers: defaultdict[str, int] = defaultdict(itertools.count().__next__)
    keep(run, numbers)
    for step in range(3):
        assert numbers[str(step)] >= 0
        run.step_done()


def queue_of_asyncio(run: Run) -> None:
    waiting: asyncio.Queue[int] = asyncio.Queue()
    for step in range(3):
        waiting.put_nowait(step)
        run.step_done()


def asynchronous_generator(run: Run) -> None:
    async def count() -> AsyncIterator[int]:
        for number in range(9):
            yield number

    async def train() -> None:
        numbers = count()
        for _ in range(3):
            await anext(numbers)
            run.step_done()

    asyncio.run(train())


def result_ahead_of_its_step(run: Run) -> None:
    def load(number: int) -> "Future[int]":
        future: Future[int] = Future()
        future.set_result(number)
        return future

    coming = load(0)
    for step in range(3):
        assert coming.result() == step
        coming = load(step + 1)
        run.step_done()


@pytest.mark.parametrize(
    ("loop", "named"),
    [
        (list_with_an_attribute, {"ring.position"}),
        (private_slot, {"private._Private__count"}),
        (class_of_an_object, {"policy.__class__"}),
        (method_of_a_class, {"Agent.act"}),
        (function_with_another_default, {"model.rate.rate"}),
        (function_that_another_one_calls, {"loss"}),
        (numbers_of_new_words, {"numbers"}),
        (queue_of_asyncio, {"waiting"}),
        (asynchronous_generator, {"numbers"}),
        (result_ahead_of_its_step, {"coming"}),
    ],
)
def test_it_is_named(loop: Callable[[Run], None], named: set[str]) -> None:
    run = Run()

    loop(run)

    assert {name.rpartition(">.")[2] for name in run.named} == named


def list_as_a_default(run: Run) -> None:
    def seen(number: int, numbers: list[int] = []) -> int:  # noqa: B006 - which is what this is about
        numbers.append(number)
        return len(numbers)

    for number in range(5):
        run.step_done(loss=seen(number))


@pytest.mark.parametrize(
    ("loop", "call"),
    [
        (function_with_another_default, 'model.rate(rate=run.state["rate"])'),
        (list_as_a_default, 'seen(numbers=run.state["numbers"])'),
    ],
)
def test_remedy_for_a_default_says_of_which_function_it_is(loop: Callable[[Run], None], call: str) -> None:
    run = Run()

    loop(run)

    (remedy,) = run.remedies
    assert call in remedy
    assert "state_dict" not in remedy


def test_cache_of_results_from_what_training_changes_is_named() -> None:
    weights = {"w": 1.0}

    @functools.cache
    def score(number: int) -> float:
        return weights["w"] * number

    run = Run()
    run.state["weights"] = weights
    for step in range(3):
        weights["w"] += score(step)
        run.step_done()

    assert run.named == ["score"]


def test_state_that_an_object_gives_under_other_names_is_kept() -> None:
    class Plateau:
        def __init__(self) -> None:
            self.rate = 1.0

        def state_dict(self) -> dict[str, Any]:
            return {"lr": self.rate}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.rate = state["lr"]

    plateau, run = Plateau(), Run()
    run.state["plateau"] = plateau
    for _ in range(3):
        plateau.rate *= 0.5
        run.step_done()

    assert run.named == []


def test_entry_of_a_container_in_the_state_is_kept() -> None:
    bank, run = {"at": 0}, Run()
    run.state["bank"] = bank
    for _ in range(3):
        bank["at"] = bank["at"] + 1
        run.step_done()

    assert run.named == []
