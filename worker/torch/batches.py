"""Which examples a PyTorch loader reads next, and what its processes draw: functions of the place in the data."""

import random
from collections.abc import Callable, Iterator

import numpy as np
import torch


class ResumableBatchSampler:
    """Indices of an epoch's whole batches, from an example on."""

    def __init__(self, count: int, batch_size: int, seed: int, epoch: int, first: int) -> None:
        self.seed = (seed * 1_000_003 + epoch) % 2**63
        self._order = torch.randperm(count, generator=torch.Generator().manual_seed(self.seed))
        self._starts = range(first, count - batch_size + 1, batch_size)
        self._batch_size = batch_size

    def __iter__(self) -> Iterator[list[int]]:
        for start in self._starts:
            yield _SeedingIndices(self._order[start : start + self._batch_size].tolist(), (self.seed, start))

    def __len__(self) -> int:
        return len(self._starts)


class _SeedingIndices(list[int]):
    """The indices of one. A process of a loader that takes them out of its queue has its generators seeded: what it
    draws for them is then a function of the place in the data, and not of when that process began. From there on they
    are a plain list, whatever the dataset does with it."""

    def __init__(self, indices: list[int], place: tuple[int, int]) -> None:
        super().__init__(indices)
        self._place = place

    def __reduce__(self) -> tuple[Callable[..., list[int]], tuple[list[int], tuple[int, int]]]:
        return _unpickle_in_loader, (list(self), self._place)


def _unpickle_in_loader(indices: list[int], place: tuple[int, int]) -> list[int]:
    if torch.utils.data.get_worker_info() is not None:
        first, second, third = np.random.SeedSequence(place).generate_state(3).tolist()
        random.seed(first)
        np.random.seed(second)
        torch.manual_seed(third)
    return indices
