"""Random numbers that belong to a place in the data: the global generators, seeded by that place for a moment.

So what is drawn for the data depends on the place alone, and what training draws does not depend on the data.
"""

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

Place = tuple[int, ...]
"""Numbers that name a place: a seed, an epoch, an example."""


def seed_of_epoch(seed: int, epoch: int) -> int:
    """One seed for an epoch's order."""
    return (seed * 1_000_003 + epoch) % 2**63


def seed_global_generators(place: Place) -> None:
    """Seeds Python's, NumPy's and PyTorch's generator of the CPU."""
    first, second, third = np.random.SeedSequence(place).generate_state(3).tolist()
    random.seed(first)
    np.random.seed(second)
    torch.default_generator.manual_seed(third)


@contextlib.contextmanager
def seeded_by(place: Place) -> Iterator[None]:
    """Within it the global generators are seeded by the place; after it they are what they were before."""
    python, numpy, own = random.getstate(), np.random.get_state(), torch.get_rng_state()
    seed_global_generators(place)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(own)


class SeedingIndices(list[Any]):
    """The indices of one batch. A loader process that receives them from its queue has its generators seeded.

    So what it draws for this batch depends on the place in the data, not on when the process was started. After that
    they are a plain list, whatever the dataset does with it.
    """

    def __init__(self, indices: list[Any], place: Place) -> None:
        super().__init__(indices)
        self._place = place

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, Place]]:
        return _unpickle_in_loader, (list(self), self._place)


class SeedingIndex(int):
    """The index of one example, for a loader that makes no batches."""

    _place: Place

    @classmethod
    def at(cls, index: int, place: Place) -> "SeedingIndex":
        """An index whose loader process is seeded by a place."""
        made = cls(index)
        made._place = place
        return made

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, Place]]:
        return _unpickle_in_loader, (int(self), self._place)


def _unpickle_in_loader(indices: Any, place: Place) -> Any:
    if torch.utils.data.get_worker_info() is not None:
        seed_global_generators(place)
    return indices
