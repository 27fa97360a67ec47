"""Reads three epochs of kinds of loaders in FOLDER, whole and broken off at some steps; prints the batches as JSON.

`torch_loaders.py FOLDER KIND…`. Each part begins with a loader and a dataset of its own, as another process would.
"""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from worker import torch as stepkeeper

FOLDER = Path(sys.argv[1])
ENDS = (2, 5, 6, 9)


class Numbers(Dataset):  # type: ignore[type-arg]
    """Examples that are their own index, with a number that the dataset draws."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: Any) -> Any:
        drawn = torch.rand((), dtype=torch.float64)
        return torch.as_tensor(index), drawn + np.random.rand() + random.random()


class OwnSampler(Sampler):  # type: ignore[type-arg]
    """Shuffles its own list in place with its own generator, and counts its passes."""

    def __init__(self) -> None:
        self.indices = list(range(22))
        self.rng = np.random.default_rng(0)
        self.passes = 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        self.rng.shuffle(self.indices)
        yield from self.indices[self.passes :]


class Buckets:
    """Batches of changing sizes, whose order is Python's global generator's, without a length."""

    def __init__(self) -> None:
        self.batches = [[0, 1, 2], [3, 4, 5, 6], [7], [8, 9, 10, 11, 12], [13, 14]]

    def __iter__(self) -> Iterator[list[int]]:
        random.shuffle(self.batches)
        return iter(self.batches)


class Adaptive(Sampler):  # type: ignore[type-arg]
    """Draws by weights that training changes in each step."""

    def __init__(self) -> None:
        self.weights = torch.ones(22)

    def __iter__(self) -> Iterator[int]:
        return iter(torch.multinomial(self.weights, 20, replacement=True).tolist())

    def __len__(self) -> int:
        return 20


class Lines(IterableDataset):  # type: ignore[type-arg]
    """A stream with a shuffle buffer, which knows nothing of its position."""

    def __init__(self) -> None:
        self.rng = random.Random(3)

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        step = 1 if info is None else info.num_workers
        buffer: list[int] = []
        for number in range(0 if info is None else info.id, 22, step):
            buffer.append(number)
            if len(buffer) > 4:
                yield torch.tensor(buffer.pop(self.rng.randrange(len(buffer)))), torch.rand(())
        for number in buffer:
            yield torch.tensor(number), torch.rand(())


class Positioned(IterableDataset):  # type: ignore[type-arg]
    """A stream that keeps its position, and forgets it at its end."""

    def __init__(self) -> None:
        self.position = self.passes = 0

    def __iter__(self) -> Iterator[Any]:
        while self.position < 22:
            self.position += 1
            yield torch.tensor(100 * self.passes + self.position - 1), torch.rand(())
        self.position, self.passes = 0, self.passes + 1

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position, "passes": self.passes}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position, self.passes = state["position"], state["passes"]


def _prepared(loader: Any, **settings: Any) -> Any:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    return Accelerator(dataloader_config=DataLoaderConfiguration(**settings)).prepare(loader)


def _stateful(*arguments: Any, **settings: Any) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(*arguments, **settings)


DATA = Numbers()
KINDS: dict[str, Any] = {
    "weighted": lambda: DataLoader(DATA, 5, sampler=WeightedRandomSampler(list(range(1, 23)), 22)),
    "replaced": lambda: DataLoader(DATA, 5, sampler=RandomSampler(DATA, replacement=True, num_samples=18)),
    "subset sampler": lambda: DataLoader(DATA, 4, sampler=SubsetRandomSampler(range(3, 21))),
    "own generator": lambda: DataLoader(
        DATA, 5, sampler=WeightedRandomSampler([1.0] * 22, 22, generator=torch.Generator().manual_seed(4))
    ),
    "subset": lambda: DataLoader(Subset(DATA, list(range(4, 20))), 3, shuffle=True),
    "batch sampler": lambda: DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 5, drop_last=True)),
    "batches of subset": lambda: DataLoader(
        DATA, batch_sampler=BatchSampler(SubsetRandomSampler(range(20)), 6, drop_last=False)
    ),
    "own sampler": lambda: DataLoader(DATA, 5, sampler=OwnSampler(), num_workers=1),
    "buckets": lambda: DataLoader(DATA, batch_sampler=Buckets()),
    "adaptive": lambda: DataLoader(DATA, 5, sampler=Adaptive()),
    "a list": lambda: DataLoader(DATA, 5, sampler=[7, 3, 5, 1, 8, 0, 2, 20]),
    "distributed": lambda: DataLoader(DATA, 3, sampler=DistributedSampler(DATA, 2, 1, seed=5)),
    "no batches": lambda: DataLoader(DATA, batch_size=None, shuffle=True, num_workers=1),
    "bulk": lambda: DataLoader(
        TensorDataset(torch.arange(22), torch.arange(22)),
        sampler=BatchSampler(RandomSampler(DATA), 5, drop_last=False),
        batch_size=None,
    ),
    "stream": lambda: DataLoader(Lines(), batch_size=5),
    "stream of processes": lambda: DataLoader(Lines(), batch_size=3, num_workers=2),
    "stream without batches": lambda: DataLoader(Lines(), batch_size=None),
    "positioned": lambda: DataLoader(Positioned(), batch_size=5),
    "positioned, full batches": lambda: DataLoader(Positioned(), batch_size=11),
    "positioned, in processes": lambda: DataLoader(Positioned(), batch_size=5, num_workers=1),
    "accelerated": lambda: _prepared(DataLoader(DATA, 5, shuffle=True)),
    "accelerated, seedable": lambda: _prepared(DataLoader(DATA, 5, shuffle=True), use_seedable_sampler=True),
    "accelerated, in order": lambda: _prepared(DataLoader(DATA, 5)),
    "accelerated, weighted": lambda: _prepared(DataLoader(DATA, 5, sampler=WeightedRandomSampler([1.0] * 22, 22))),
    "accelerated stream": lambda: _prepared(DataLoader(Positioned(), 5)),
    "accelerated stream read again": lambda: _prepared(DataLoader(Lines(), 5)),
    "accelerated ends": lambda: _prepared(DataLoader(TensorDataset(torch.arange(22)), 5)),
    "stateful": lambda: _stateful(DATA, 5, shuffle=True),
    "stateful stream": lambda: _stateful(Positioned(), 5),
    "stateful stream of processes": lambda: _stateful(Positioned(), 5, num_workers=1),
}


def parts(kind: str, folder: str, *ends: int) -> list[Any]:
    """What a run of three epochs reads, broken off after these numbers of steps; the last part reaches its end."""
    seen = []
    for end in (*ends, 1000):
        torch.manual_seed(1)
        np.random.seed(1)
        random.seed(1)
        loader = KINDS[kind]()
        sampler = getattr(loader, "sampler", None)
        with_rng = torch.Generator().manual_seed(2)
        settings: dict[str, Any] = {"interval": "1 steps", "leave_out": ["seen"], "generators": {"rng": with_rng}}
        run = stepkeeper.Run(model=nn.Linear(1, 1), directory=FOLDER / kind / folder, **settings)
        try:
            with run:
                for epoch in run.epochs(3):
                    if isinstance(sampler, DistributedSampler):
                        sampler.set_epoch(epoch)
                    for batch in run.batches(loader):
                        examples = batch[0] if isinstance(batch, list | tuple) else batch
                        content: Any = [each.tolist() if isinstance(each, torch.Tensor) else each for each in batch]
                        noise = torch.rand(()).item() + np.random.rand() + torch.rand((), generator=with_rng).item()
                        if kind == "accelerated ends":
                            content = loader.gradient_state.end_of_dataloader
                        seen.append([epoch, content, noise])
                        if isinstance(sampler, Adaptive):
                            sampler.weights[examples] += 3.0
                        run.step_done()
                        if run.step == end:
                            raise KeyboardInterrupt
                    seen.append(["tail", epoch, torch.rand(()).item()])
        except KeyboardInterrupt:
            continue
    return seen


def both(kind: str) -> dict[str, Any]:
    """What is read undisturbed, and in parts that end at some steps, the last ones of epochs among them."""
    whole = parts(kind, "whole")
    steps = sum(1 for each in whole if each[0] != "tail")
    first_epoch = sum(1 for each in whole if each[0] == 0)
    ends = sorted(end for end in {*ENDS, first_epoch, steps} if end <= steps)
    return {"whole": whole, "parts": parts(kind, "parts", *ends)}


if __name__ == "__main__":
    print(json.dumps({kind: both(kind) for kind in sys.argv[2:]}))
