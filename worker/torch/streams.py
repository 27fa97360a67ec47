"""The batches of an IterableDataset, whose examples have no numbers.

One with `state_dict` and `load_state_dict` (torchdata's protocol) is asked for its state at each checkpoint, and goes
on from there, if it is read in this process. Anything else is read again from its beginning up to the position: with
the generators that it had there, and with the global ones seeded by the place of each batch. Whether that gives the
same examples again is tested before the first batch: the first one is read twice.
"""

import copy
import itertools
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from supervisor.protocol.plurals import counted_bytes
from worker.checks.watch.digests import CONTAINERS, PLAIN, locals_to_read
from worker.checks.watch.kept.kept_values import digest_of
from worker.state.description import BATCH_SIZE
from worker.state.plain_values import NotSaveable
from worker.state.state_file import Position
from worker.state.value_restorer import NotRestorable
from worker.torch.places import seed_of_epoch, seeded_by
from worker.torch.sampler_state import MAX_STATE_BYTES, SamplerRestorer, SavedSampler
from worker.torch.saved_state import equal_values

_REMEDY = "give it state_dict and load_state_dict, or a generator with a fixed seed that each pass makes anew"


def keeps_position(item: Any) -> bool:
    """Whether an object can say where it is and go on from there."""
    return callable(getattr(item, "state_dict", None)) and callable(getattr(item, "load_state_dict", None))


@dataclass
class StreamPlan:
    """How a dataset is read. `loader`: makes a DataLoader of it, with a generator; `has_processes`: one that has some.

    `set_epoch`: tells the script's loader which epoch begins. `looks_ahead`: whether the last batch has to be known as
    such when it is given out.
    """

    dataset: Any
    seed: int
    batch_size: int | None
    loader: Callable[[Any, torch.Generator], Any]
    has_processes: bool
    set_epoch: Callable[[int], None] | None = None
    looks_ahead: bool = False
    is_last: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        is_asked = keeps_position(self.dataset) and not self.has_processes
        self._reader: _StreamReader = (_Asked if is_asked else _ReadAgain)(self)
        self._restored: Mapping[str, Any] | None = None
        self._state: Mapping[str, Any] | None = None
        """The state behind the batch that was given out, if the next one was read already."""

    def describe(self) -> dict[str, Any]:
        """What decides which batches come, by name."""
        size = {} if self.batch_size is None else {BATCH_SIZE: self.batch_size}
        return {**size, "order": f"read from a {type(self.dataset).__name__}"}

    @property
    def kept(self) -> tuple[Any, ...]:
        """The objects whose state it keeps."""
        return (self.dataset,)

    @property
    def is_asked(self) -> bool:
        """Whether checkpoints have what the dataset's own state_dict gives, and nothing else of it."""
        return isinstance(self._reader, _Asked)

    @property
    def roots(self) -> list[tuple[str, Any]]:
        """By path, where to look for what its state lacks: the dataset, and what its generator keeps in local names and
        reads again."""
        name = f"{type(self.dataset).__name__}()"
        return [(name, self.dataset), *((f"{name}.__iter__.{part}", value) for part, value in self._reader.unsaved())]

    def follow(self, before: Any) -> None:
        """Takes over what the plan before this one knows of the stream."""
        if isinstance(before, StreamPlan) and before.dataset is self.dataset:
            self._reader.is_tested = before._reader.is_tested

    def state(self) -> Mapping[str, Any] | None:
        """What a checkpoint has to hold now; None before the first batch."""
        return self._state if self._state is not None else self._reader.state()

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Gives the state that `state` returned before the restart."""
        self._restored = state

    def read(self, position: Position) -> Iterator[tuple[Any, Position]]:
        """Yields the batches that are left of an epoch, each with the position behind it. Raises TypeError."""
        restored, self._restored = self._restored, None
        self.is_last, number, epoch = False, position.batch, position.epoch
        if self.set_epoch is not None:
            self.set_epoch(epoch)
        batches = self._reader.read(epoch, number, restored)
        if not self.looks_ahead:
            for batch in batches:
                number += 1
                yield batch, Position(epoch, number, None)
            return
        following = next(batches, None)
        while following is not None:
            batch, self._state = following, copy.deepcopy(self._reader.state())
            following = next(batches, None)
            self.is_last = following is None
            number += 1
            yield batch, Position(epoch, number, None)
        self._state = None


class _StreamReader:
    """One of the ways to read a stream."""

    def __init__(self, plan: StreamPlan) -> None:
        self._plan = plan
        self.is_tested = False

    def state(self) -> Mapping[str, Any] | None:
        """What a checkpoint has to hold now."""
        raise NotImplementedError

    def read(self, epoch: int, skipped: int, restored: Mapping[str, Any] | None) -> Iterator[Any]:
        """Yields the batches of an epoch behind the first `skipped`."""
        raise NotImplementedError

    def unsaved(self) -> list[tuple[str, Any]]:
        """As of the plan; what is read again needs no state."""
        return []

    def _iterator(self, source: Any, epoch: int) -> Iterator[Any]:
        """The batches of a source; making the iterator draws no number that training would draw."""
        seed = seed_of_epoch(self._plan.seed, epoch)
        with seeded_by((self._plan.seed, epoch, 0)):
            return iter(self._plan.loader(source, torch.Generator().manual_seed(seed)))

    def _seeded(self, source: Any, epoch: int, first: int) -> Iterator[Any]:
        """The batches, each read with the global generators seeded by its place. `first`: the number of the first."""
        batches = self._iterator(source, epoch)
        for number in itertools.count(first):
            with seeded_by((self._plan.seed, epoch, number)):
                batch = next(batches, _END)
            if batch is _END:
                return
            yield batch


class _Asked(_StreamReader):
    """Asks the source for its state."""

    def __init__(self, plan: StreamPlan) -> None:
        super().__init__(plan)
        self._examples: _Examples | None = None

    def state(self) -> Mapping[str, Any] | None:
        examples = self._examples
        if examples is None:
            return None
        inner = examples.inner.state_dict() if examples.has_own_position else None
        return {"source": self._plan.dataset.state_dict(), "iterator": inner, "ended": examples.ended}

    def unsaved(self) -> list[tuple[str, Any]]:
        """As of the plan. What stands in the state under any name is taken from there."""
        source, examples = self._plan.dataset, self._examples
        if examples is None or not isinstance(examples.inner, types.GeneratorType):
            return []
        saved = set(_digests_in(source.state_dict()))
        return [
            (name, value)
            for name, value in locals_to_read(examples.inner.gi_frame).items()
            if isinstance(value, (*PLAIN, *CONTAINERS)) and digest_of(value) not in saved
        ]

    def read(self, epoch: int, skipped: int, restored: Mapping[str, Any] | None) -> Iterator[Any]:
        source = self._plan.dataset
        if restored is not None:
            source.load_state_dict(restored["source"])
        self._examples = examples = _Examples(source)
        if restored is not None and skipped:
            examples.go_on(restored)
        if self._plan.looks_ahead:
            yield from self._seeded(examples, epoch, skipped)
        else:
            yield from self._iterator(examples, epoch)


class _Examples(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """The examples that a dataset yields, with what is known of its iterator."""

    def __init__(self, dataset: Any) -> None:
        self.inner = iter(dataset)
        self.has_own_position = self.inner is not dataset and keeps_position(self.inner)
        self.ended = False
        """The dataset has no more of them, which it may have forgotten: it can be read again from its beginning."""

    def go_on(self, state: Mapping[str, Any]) -> None:
        """Goes on where the iterator of that state was."""
        self.ended = state["ended"]
        if self.has_own_position and state["iterator"] is not None:
            self.inner.load_state_dict(state["iterator"])

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.ended:
            raise StopIteration
        try:
            return next(self.inner)
        except StopIteration:
            self.ended = True
            raise


class _ReadAgain(_StreamReader):
    """Reads again what comes before the position."""

    def __init__(self, plan: StreamPlan) -> None:
        super().__init__(plan)
        self._before: dict[str, Any] | None = None

    def state(self) -> Mapping[str, Any] | None:
        if self._before is None:
            return None
        return {"before": self._before, "now": self._captured(), "batch size": self._plan.batch_size}

    def read(self, epoch: int, skipped: int, restored: Mapping[str, Any] | None) -> Iterator[Any]:
        if restored is not None:
            if skipped and restored["batch size"] != self._plan.batch_size:
                raise ValueError(
                    f"cannot go on in the middle of epoch {epoch} with batches of {self._plan.batch_size}: what is "
                    f"consumed of a {type(self._plan.dataset).__name__} is read again, in batches of "
                    f"{restored['batch size']}; use these until the epoch is over"
                )
            self._put_back(restored["before" if skipped else "now"])
        self._before = self._captured()
        if not self.is_tested:
            self._test(epoch)
        for number, batch in enumerate(self._seeded(self._plan.dataset, epoch, 0), 1):
            if number == skipped and restored is not None:
                self._put_back(restored["now"])
            if number > skipped:
                yield batch

    def _test(self, epoch: int) -> None:
        """Raises TypeError if the first batch is another one when it is read again."""
        self.is_tested = True
        kind = type(self._plan.dataset).__name__
        firsts = []
        for _ in range(2):
            firsts.append(next(self._seeded(self._plan.dataset, epoch, 0), None))
            self._put_back(self._before or {})
        if not equal_values(*firsts):
            raise TypeError(
                f"cannot resume in the middle of a {kind}: it yields other examples when it is read again; {_REMEDY}"
            )

    def _captured(self) -> dict[str, Any]:
        kind = type(self._plan.dataset).__name__
        try:
            state = SavedSampler(self._plan.dataset, None, follows_datasets=True)
        except NotSaveable as error:
            raise TypeError(f"cannot save the state of a {kind}{error}; {_REMEDY}") from error
        if state.size_bytes > MAX_STATE_BYTES:
            raise TypeError(
                f"cannot save the state of a {kind} in each checkpoint: it has {counted_bytes(state.size_bytes)}; "
                f"{_REMEDY}"
            )
        return state.to_state()

    def _put_back(self, state: Mapping[str, Any]) -> None:
        try:
            SamplerRestorer.restore(state, self._plan.dataset)
        except NotRestorable as error:
            kind = type(self._plan.dataset).__name__
            raise TypeError(f"cannot restore the state of a {kind}: {error}") from error


def _digests_in(state: Any) -> Iterator[int | None]:
    """Of each entry of a state, by whatever name. A list, such as one of tokens, is one value: a count may be in it."""
    yield digest_of(state)
    for entry in state.values() if isinstance(state, Mapping) else ():
        yield from _digests_in(entry)


_END = object()
