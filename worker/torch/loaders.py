"""The batches of a PyTorch dataset or DataLoader from any position on: which plan reads which data.

A dataset, and a DataLoader that shuffles or reads in order, are read in an order that is a function of the seed and the
epoch (`BatchPlan`). Samplers of any other kind draw their order themselves (`drawn_order`), and data without numbers
are read as `streams` says.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from supervisor.protocol.plurals import counted
from worker.state.description import BATCH_SIZE, CONTENT, Rows, sample_of_content
from worker.state.state_file import Position
from worker.torch.accelerated import AcceleratedPlan, is_prepared, refusal
from worker.torch.drawn_order import DrawnPlan
from worker.torch.places import SeedingIndices, seed_of_epoch
from worker.torch.streams import StreamPlan

_KEPT = (
    "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context",
    "prefetch_factor", "persistent_workers", "pin_memory_device",
)  # fmt: skip
"""The settings of a script's own DataLoader that don't decide which examples a batch has."""


class Plan(Protocol):
    """How data are divided into batches, from any position on."""

    def describe(self) -> dict[str, Any]:
        """What decides which batches come, by name."""

    @property
    def dataset(self) -> Any:
        """What is read."""

    @property
    def has_processes(self) -> bool:
        """Whether loader processes read it."""

    @property
    def kept(self) -> tuple[Any, ...]:
        """The objects whose state it keeps."""

    def follow(self, before: Any) -> None:
        """Takes over what the plan before this one knows of the same data. None: there was none in this process."""

    def state(self) -> Mapping[str, Any] | None:
        """What a checkpoint has to hold now, besides the position."""

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Gives what `state` returned before the restart; called before the first batch."""

    def read(self, position: Position) -> Iterator[tuple[Any, Position]]:
        """Yields the batches that are left of an epoch, each with the position behind it."""


@dataclass
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
    is_last: bool = field(default=False, init=False)

    @property
    def has_processes(self) -> bool:
        """Whether loader processes read the dataset."""
        return bool(self.options.get("num_workers"))

    @property
    def kept(self) -> tuple[Any, ...]:
        """Nothing."""
        return ()

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

    def follow(self, before: Any) -> None:
        """Nothing: the order is a function of the seed and the epoch."""

    def state(self) -> None:
        """Nothing, for the same reason."""

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Nothing, for the same reason."""

    def read(self, position: Position) -> Iterator[tuple[Any, Position]]:
        """Yields the batches that are left of an epoch, each with the position behind it."""
        number, examples = position.batch, position.examples
        first = min(number * self.batch_size if examples is None else examples, self.count)
        sampler = ResumableBatchSampler(self, position.epoch, first)
        # without a generator of its own a DataLoader draws from the global one at each resume
        own = torch.Generator().manual_seed(sampler.seed)
        loader = DataLoader(self.dataset, batch_sampler=sampler, generator=own, **self.options)
        left = len(sampler)
        for batch in loader:
            number, left = number + 1, left - 1
            first = min(first + self.batch_size, self.count)
            self.is_last = left == 0
            yield batch, Position(position.epoch, number, first)


def _rows_of(tensor: torch.Tensor) -> Rows:
    def row(number: int) -> Any:
        values = tensor[number].detach().cpu().contiguous()
        return values.reshape(-1).view(torch.uint8).numpy() if values.dtype != torch.bool else values.numpy()

    return len(tensor), f"{tensor.dtype} {list(tensor.shape[1:])}", row


def plan_batches(data: Any, batch_size: int | None, seed: int, options: Mapping[str, Any]) -> Plan:
    """The plan for a dataset, or for a loader of the script's own with the same batches.

    Raises TypeError or ValueError, saying what to write, for what can't be resumed in the middle of an epoch.
    """
    if isinstance(data, DataLoader) or is_prepared(data):
        if batch_size is not None or options:
            names = ", ".join(["batch_size"] * (batch_size is not None) + sorted(options))
            raise TypeError(
                f"cannot use {names} with a DataLoader, which has its own; leave them out, or give its dataset"
            )
        return _plan_of_loader(data, seed)
    if batch_size is None:
        if not hasattr(data, "__getitem__"):
            _check_dataset(data)
        raise TypeError("cannot make batches without a size: run.batches(dataset, batch_size=64)")
    if isinstance(data, IterableDataset):
        return _plan_of_loader(DataLoader(data, batch_size, drop_last=True, **options), seed)
    _check_dataset(data)
    return _checked(BatchPlan(data, batch_size, seed, options=dict(options)))


def _checked(plan: BatchPlan) -> BatchPlan:
    if plan.count < (plan.batch_size if plan.drop_last else 1):
        raise ValueError(
            f"cannot make batches of {plan.batch_size} from {counted(plan.count, 'example')}; use a smaller size"
        )
    return plan


def _plan_of_loader(loader: Any, seed: int) -> Plan:
    if not is_prepared(loader):
        return _plan_of_own_loader(loader, seed, getattr(loader, "set_epoch", None))
    if (text := refusal(loader)) is not None:
        raise TypeError(text)
    return AcceleratedPlan(loader, _plan_of_own_loader(loader, seed, loader.set_epoch))


def _plan_of_own_loader(loader: Any, seed: int, set_epoch: Callable[[int], None] | None) -> Plan:
    """`set_epoch`: the method of the loader that says which epoch begins, which it would call itself."""
    if not is_prepared(loader) and type(loader).__iter__ is not DataLoader.__iter__ and not _is_stateful(loader):
        raise TypeError(
            f"cannot resume a {type(loader).__name__} in the middle of an epoch: it has an __iter__ of its own, which "
            f"run.batches does not call; give run.batches a torch.utils.data.DataLoader, and do in the loop what "
            f"{type(loader).__name__} does with each batch"
        )
    dataset = loader.dataset
    options = {name: getattr(loader, name) for name in _KEPT if getattr(loader, name, None) not in (None, "")}
    if isinstance(dataset, IterableDataset):
        return _plan_of_stream(loader, seed, options, set_epoch)
    _check_dataset(dataset)
    batch_sampler, sampler = loader.batch_sampler, loader.sampler
    if batch_sampler is None:
        return DrawnPlan(dataset, sampler, None, seed, options=options, set_epoch=set_epoch)
    if type(batch_sampler) is not BatchSampler:
        return DrawnPlan(dataset, batch_sampler, None, seed, yields_batches=True, options=options, set_epoch=set_epoch)
    # of a DataLoader(batch_sampler=...) the loader's own attributes are defaults that mean nothing
    sampler, size, drop_last = batch_sampler.sampler, batch_sampler.batch_size, batch_sampler.drop_last
    shuffles = type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(dataset)
    is_in_order = type(sampler) is SequentialSampler and len(sampler.data_source) == len(dataset)
    if not shuffles and not is_in_order:
        return DrawnPlan(dataset, sampler, size, seed, drop_last=drop_last, options=options, set_epoch=set_epoch)
    if shuffles and (generator := sampler.generator or loader.generator) is not None:
        seed += generator.initial_seed()
    return _checked(BatchPlan(dataset, size, seed if shuffles else None, drop_last, options))


def _plan_of_stream(
    loader: Any, seed: int, options: Mapping[str, Any], set_epoch: Callable[[int], None] | None
) -> Plan:
    size, drop_last = loader.batch_size, loader.drop_last

    def remade(dataset: Any, generator: torch.Generator) -> Any:
        arguments = {"drop_last": drop_last} if size is not None else {}
        return DataLoader(dataset, batch_size=size, generator=generator, **arguments, **options)

    plan = StreamPlan(loader.dataset, seed, size, remade, loader.num_workers > 0, set_epoch)
    plan.looks_ahead = is_prepared(loader)
    return plan


def _is_stateful(loader: Any) -> bool:
    """Whether it is torchdata's, whose `__iter__` only adds a position."""
    return type(loader).__module__.startswith("torchdata.stateful_dataloader.")


def _check_dataset(dataset: Any) -> None:
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise TypeError(
            f"cannot resume in the middle of a {type(dataset).__name__}: its examples have no numbers; give a dataset "
            f"with __len__ and __getitem__, a torch.utils.data.DataLoader, or an IterableDataset that makes it: "
            f"run.batches(DataLoader(stream, batch_size=None)); or count the examples with worker.files.FilesRun"
        )


class ResumableBatchSampler:
    """Yields the indices of an epoch's batches, beginning at any example."""

    def __init__(self, plan: BatchPlan, epoch: int, first: int) -> None:
        self.seed = seed_of_epoch(plan.seed or 0, epoch)
        self._order = torch.arange(plan.count)
        if plan.seed is not None:
            self._order = torch.randperm(plan.count, generator=torch.Generator().manual_seed(self.seed))
        end = plan.count - plan.batch_size + 1 if plan.drop_last else plan.count
        self._starts = range(first, end, plan.batch_size)
        self._batch_size = plan.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        for start in self._starts:
            yield SeedingIndices(self._order[start : start + self._batch_size].tolist(), (self.seed, start))

    def __len__(self) -> int:
        return len(self._starts)
