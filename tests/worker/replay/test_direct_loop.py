"""Which loops can be led back to earlier batches."""

import gc
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import worker
from worker.replay.direct_loop import loop_of, why_not_direct

SOURCE = """
import sys
def batches(seen):
    for number in range(3):
        seen.append(sys._getframe())
        yield number
"""


class Asked:
    """Stands for a run: what it says of the loop that reads `batches`."""

    def __init__(self) -> None:
        self.said: str | None = "not asked"

    def batches(self) -> Iterator[int]:
        names: dict[str, Any] = {}
        exec(compile(SOURCE, str(Path(worker.__file__).parent / "data" / "made.py"), "exec"), names)
        holder: list[Iterator[int]] = []
        iterator = names["batches"](_Ask(self, holder))
        holder.append(_Weak(iterator))  # type: ignore[arg-type]
        return iterator  # type: ignore[no-any-return]


class _Weak:
    def __init__(self, iterator: Any) -> None:
        import weakref

        self.get = weakref.ref(iterator)


class _Ask:
    def __init__(self, asked: Asked, holder: list[Any]) -> None:
        self.asked, self.holder = asked, holder

    def append(self, frame: Any) -> None:
        self.asked.said = why_not_direct(loop_of(frame), self.holder[0].get())


def plain(asked: Asked) -> None:
    for _ in asked.batches():
        pass


def by_name(asked: Asked) -> None:
    batches = asked.batches()
    for _ in batches:
        pass


def counted(asked: Asked) -> None:
    for _ in enumerate(asked.batches()):
        pass


def zipped(asked: Asked) -> None:
    for _ in zip(range(9), asked.batches(), strict=False):
        pass


def sliced(asked: Asked) -> None:
    for _ in itertools.islice(asked.batches(), 2):
        pass


def one_by_one(asked: Asked) -> None:
    batches = asked.batches()
    while next(batches, None) is not None:
        pass


def passed_on(asked: Asked) -> None:
    def doubled() -> Iterator[int]:
        for batch in asked.batches():
            yield 2 * batch

    for _ in enumerate(doubled()):
        pass


def held(asked: Asked) -> None:
    class Bar:
        def __init__(self, batches: Iterator[int]) -> None:
            self.batches = batches

    bar = Bar(asked.batches())
    for _ in bar.batches:
        pass


@pytest.fixture(autouse=True)
def _few_objects() -> None:
    """Who refers to an object is found by asking all objects that aren't frozen, and other tests left a million."""
    gc.freeze()


@pytest.mark.parametrize("loop", [plain, by_name])
def test_a_loop_over_the_batches_themselves_can_be_led_back(loop: Callable[[Asked], None]) -> None:
    asked = Asked()

    loop(asked)

    assert asked.said is None


@pytest.mark.parametrize(
    ("loop", "names"),
    [
        (counted, "enumerate"),
        (zipped, "tuple"),
        (sliced, "islice"),
        (one_by_one, "one by one"),
        (passed_on, "doubled"),
        (held, "Bar"),
    ],
)
def test_a_loop_that_counts_on_is_named(loop: Callable[[Asked], None], names: str) -> None:
    asked = Asked()

    loop(asked)

    assert asked.said is not None
    assert names in asked.said


def test_a_frame_of_nobody_is_no_loop() -> None:
    assert why_not_direct(None, iter(())) is not None
    assert loop_of(sys._getframe()) is sys._getframe()
