"""The batches of a PyTorch dataset from any position on, in an order that is a function of the seed and the epoch."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from supervisor.protocol.plurals import counted
from worker.state.description import BATCH_SIZE, CONTENT, Rows, sample_of_content

_KEPT = (
    "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context",
    "prefetch_factor", "persistent_workers", "pin_memory_device",
)  # fmt: skip
"""The settings of a script's own DataLoader that don't decide which examples a batch has."""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """How a dataset is divided into batches. `options`: further arguments of torch.utils.data.DataLoader.

    `seed`: of the order; None: in the dataset's own order. `drop_last`: whether examples that do not fill a last batch
    are left out of the epoch.
    """

    dataset: Any
    batch_size: int
    seed: int | None
    drop_last: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of examples."""
        return len(self.dataset)

    def describe(self) -> dict[str, Any]:
        """What decides which batches come, by name."""
        described = {
            "number of examples": self.count,
            BATCH_SIZE: self.batch_size,
            "order": "as they are" if self.seed is None else f"shuffled with seed {self.seed}",
        }
        if isinstance(self.dataset, torch.utils.data.TensorDataset):
            described[CONTENT] = sample_of_content(map(_rows_of, self.dataset.tensors))
        return described

    def first_of(self, batch: int, examples: int | None) -> int:
        """The first example that is left. `examples`: how many of the epoch are consumed; None: `batch` batches."""
        return min(batch * self.batch_size if examples is None else examples, self.count)

    def read(self, epoch: int, first: int) -> Iterator[tuple[Any, int]]:
        """Yields the batches that are left of an epoch, each with the number of examples consumed after it."""
        sampler = ResumableBatchSampler(self, epoch, first)
        # without a generator of its own a DataLoader draws from the global one at each resume
        own = torch.Generator().manual_seed(sampler.seed)
        loader = torch.utils.data.DataLoader(self.dataset, batch_sampler=sampler, generator=own, **self.options)
        for examples in loader:
            first = min(first + self.batch_size, self.count)
            yield examples, first


def _rows_of(tensor: torch.Tensor) -> Rows:
    def row(number: int) -> Any:
        found = tensor[number].detach().cpu().contiguous()
        return found.reshape(-1).view(torch.uint8).numpy() if found.dtype != torch.bool else found.numpy()

    return len(tensor), f"{tensor.dtype} {list(tensor.shape[1:])}", row


def plan_batches(data: Any, batch_size: int | None, seed: int, options: Mapping[str, Any]) -> BatchPlan:
    """The plan for a dataset, or for a DataLoader of the script's own with the same batches and shuffling.

    Raises TypeError or ValueError, saying what to write, for what can't be resumed in the middle of an epoch.
    """
    if isinstance(data, torch.utils.data.DataLoader):
        if batch_size is not None or options:
            given = ", ".join(["batch_size"] * (batch_size is not None) + sorted(options))
            raise TypeError(
                f"cannot use {given} with a DataLoader, which has its own; leave them out, or give its dataset"
            )
        return _plan_of_loader(data, seed)
    if batch_size is None:
        raise TypeError("cannot make batches without a size: run.batches(dataset, batch_size=64)")
    _check_dataset(data)
    return _checked(BatchPlan(data, batch_size, seed, options=dict(options)))


def _checked(plan: BatchPlan) -> BatchPlan:
    if plan.count < (plan.batch_size if plan.drop_last else 1):
        raise ValueError(
            f"cannot make batches of {plan.batch_size} from {counted(plan.count, 'example')}; use a smaller size"
        )
    return plan


def _plan_of_loader(loader: Any, seed: int) -> BatchPlan:
    _check_dataset(loader.dataset)
    if loader.batch_sampler is None:
        raise TypeError("cannot resume a DataLoader with batch_size=None; give it a batch_size")
    sampler = loader.sampler
    shuffles = type(sampler) is torch.utils.data.RandomSampler
    is_plain = type(loader.batch_sampler) is torch.utils.data.BatchSampler and (
        (shuffles and not sampler.replacement and sampler.num_samples == len(loader.dataset))
        or type(sampler) is torch.utils.data.SequentialSampler
    )
    if not is_plain:
        found = loader.batch_sampler if type(sampler) is torch.utils.data.SequentialSampler else sampler
        raise TypeError(
            f"cannot resume a DataLoader with a {type(found).__name__} in the middle of an epoch; write "
            f"run.batches(dataset, batch_size=..., seed=...), or use a DataLoader with shuffle=True or shuffle=False"
        )
    if shuffles and loader.generator is not None:
        seed += loader.generator.initial_seed()
    options = {name: getattr(loader, name) for name in _KEPT if getattr(loader, name, None) not in (None, "")}
    plan = BatchPlan(loader.dataset, loader.batch_size, seed if shuffles else None, loader.drop_last, options)
    return _checked(plan)


def _check_dataset(dataset: Any) -> None:
    if isinstance(dataset, torch.utils.data.IterableDataset) or not hasattr(dataset, "__len__"):
        raise TypeError(
            f"cannot resume in the middle of a {type(dataset).__name__}: its examples have no numbers; give a dataset "
            f"with __len__ and __getitem__, or count the examples with worker.files.FilesRun"
        )


class ResumableBatchSampler:
    """Yields the indices of an epoch's batches, beginning at any example."""

    def __init__(self, plan: BatchPlan, epoch: int, first: int) -> None:
        self.seed = ((plan.seed or 0) * 1_000_003 + epoch) % 2**63
        self._order = torch.arange(plan.count)
        if plan.seed is not None:
            self._order = torch.randperm(plan.count, generator=torch.Generator().manual_seed(self.seed))
        end = plan.count - plan.batch_size + 1 if plan.drop_last else plan.count
        self._starts = range(first, end, plan.batch_size)
        self._batch_size = plan.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        for start in self._starts:
            yield _SeedingIndices(self._order[start : start + self._batch_size].tolist(), (self.seed, start))

    def __len__(self) -> int:
        return len(self._starts)


class _SeedingIndices(list[int]):
    """The indices of one batch. A loader process that receives them from its queue has its generators seeded.

    So what it draws for this batch depends on the place in the data, not on when the process was started. After that
    they are a plain list, whatever the dataset does with it.
    """

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
