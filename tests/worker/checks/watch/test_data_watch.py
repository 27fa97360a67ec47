"""What the functions of a dataset change while it is read is named; what each pass or each look makes anew is not."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.worker.checks.watch.test_step_watch import Run


class Source:
    """A generator of examples in an object."""

    def __init__(self) -> None:
        self.served = 0
        self.level = itertools.cycle([0.0, 0.5])
        self.number = -1
        self.cache: dict[int, float] = {}

    def __call__(self) -> Iterator[float]:
        self.number = 0
        for _ in range(3):
            self.served += 1
            self.number += 1
            self.cache[self.served] = self.served * next(self.level)
            yield self.cache[self.served] + self.number


class Reads(Run):
    """A run that reads a dataset, of whose functions the loop has no name."""

    def __init__(self, *exempt: Any, is_watched: bool = True) -> None:
        self.source = Source()
        super().__init__(*exempt, of_data=[("Source", self.source)] if is_watched else [])

    def train(self) -> None:
        for _epoch in self.epochs(2):
            for batch in self.source():
                self.step_done(loss=batch)


def test_number_and_iterator_of_a_datasets_function_are_named() -> None:
    run = Reads()

    run.train()

    assert run.named == ["Source.served", "Source.level"]
    assert "test_data_watch.py:" in run.places[0]


@pytest.mark.parametrize("run", [Reads("served", "level"), Reads(is_watched=False)])
def test_what_may_begin_anew_or_is_of_no_dataset_is_not_named(run: Reads) -> None:
    run.train()

    assert run.named == []
