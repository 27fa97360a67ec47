"""The batches of a DataLoader whose order comes from a sampler of any kind.

The order of an epoch is drawn as a whole before its first batch, by the script's own sampler, with the global
generators seeded by the epoch. A checkpoint holds the sampler's state from before it was drawn: a restart draws the
same order again, skips what is consumed, and gives the sampler the state that it had at the checkpoint.

Whether this state is all there is, is tested before the first batch: the order is drawn twice.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import xxhash

from supervisor.protocol.plurals import counted, counted_bytes
from worker.state.description import BATCH_SIZE
from worker.state.plain_values import NotSaveable
from worker.state.state_file import Position
from worker.state.value_restorer import NotRestorable
from worker.torch.places import SeedingIndex, SeedingIndices, seed_of_epoch, seeded_by
from worker.torch.sampler_state import MAX_STATE_BYTES, SamplerRestorer, SavedSampler

MAX_DRAWN = 20_000_000  # indices in memory, some 700 MB; more of them are without end
_REMEDY = (
    "give the sampler state_dict and load_state_dict, or make its order a function of set_epoch(epoch); or write "
    "run.batches(dataset, batch_size=..., seed=...)"
)


@dataclass
class DrawnPlan:
    """How a sampler divides a dataset into batches. `options`: further arguments of torch.utils.data.DataLoader.

    `sampler`: what is drawn: it yields examples, of which `batch_size` make a batch (None: each is one on its own), or
    batches, if `yields_batches`. `set_epoch`: tells the script's loader which epoch begins.
    """

    dataset: Any
    sampler: Any
    batch_size: int | None
    seed: int
    drop_last: bool = False
    yields_batches: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    set_epoch: Callable[[int], None] | None = None

    def __post_init__(self) -> None:
        self._unchanged: Mapping[str, bytes] = {}
        self._begun: dict[str, Any] | None = None  # the state from which this epoch's order was drawn
        self._behind: bytes | None = None  # a digest of the one just after that
        self._restored: Mapping[str, Any] | None = None
        self._is_tested = False
        self.is_last = False
        """Whether the batch that was given out is the last one of its epoch."""

    def describe(self) -> dict[str, Any]:
        """What decides which batches come, by name."""
        size = {} if self.yields_batches else {BATCH_SIZE: self.batch_size or 1}
        order = f"drawn by a {type(self.sampler).__name__}"
        return {"number of examples": len(self.dataset), **size, "order": order}

    @property
    def has_processes(self) -> bool:
        """Whether loader processes read the dataset."""
        return bool(self.options.get("num_workers"))

    @property
    def kept(self) -> tuple[Any, ...]:
        """The objects whose state it keeps."""
        inner = (getattr(self.sampler, name, None) for name in ("sampler", "batch_sampler"))
        return (self.sampler, *(part for part in inner if part is not None))

    def follow(self, before: Any) -> None:
        """Takes over what the plan before this one knows of the sampler. None: it is the first one of this process."""
        if before is None:
            self._unchanged = self._captured({}).large
        elif isinstance(before, DrawnPlan) and before.sampler is self.sampler:
            self._unchanged, self._is_tested = before._unchanged, before._is_tested

    def state(self) -> dict[str, Any] | None:
        """What a checkpoint has to hold now; None before the first batch."""
        if self._begun is None:
            return None
        now = self._captured(self._unchanged)
        return {**self._begun, "now": None if _digest(now) == self._behind else now.to_state()}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Gives the state that `state` returned before the restart."""
        self._restored = state

    def read(self, position: Position) -> Iterator[tuple[Any, Position]]:
        """Yields the batches that are left of an epoch, each with the position behind it. Raises TypeError."""
        batches = self._batches_of(self._draw(position), position.epoch)
        number = _number_at(batches, position)
        left = batches[number:]
        own = torch.Generator().manual_seed(seed_of_epoch(self.seed, position.epoch))
        how = {"sampler" if self._is_single else "batch_sampler": [indices for indices, _ in left]}
        if self._is_single:
            how["batch_size"] = None  # type: ignore[assignment]
        loader = torch.utils.data.DataLoader(self.dataset, generator=own, **how, **self.options)
        for batch, (_, consumed) in zip(loader, left, strict=True):
            number += 1
            self.is_last = number == len(batches)
            yield batch, Position(position.epoch, number, consumed)

    @property
    def _is_single(self) -> bool:
        return self.batch_size is None and not self.yields_batches

    def _batches_of(self, drawn: list[Any], epoch: int) -> list[tuple[Any, int]]:
        """The indices of each batch, with the number of examples that are consumed behind it."""
        if self._is_single:
            items = enumerate(drawn, 1)
            return [(_seeding(index, (self.seed, epoch, number)), number) for number, index in items]
        if self.yields_batches:
            groups = drawn
        else:
            size = self.batch_size or 1
            groups = [drawn[first : first + size] for first in range(0, len(drawn), size)]
            if self.drop_last and groups and len(groups[-1]) < size:
                groups.pop()
        ends = itertools.accumulate(map(len, groups))
        return [(SeedingIndices(group, (self.seed, epoch, end)), end) for group, end in zip(groups, ends, strict=True)]

    def _draw(self, position: Position) -> list[Any]:
        """Draws an epoch's order, after a restart within the epoch the same again. Raises TypeError."""
        restored, self._restored = self._restored, None
        is_again = restored is not None and position.batch > 0
        if restored is not None:
            self._put_back(restored["before"])
            if not is_again:  # the epoch of that order is over
                self._tell_epoch(restored["epoch"])
                self._drawn_once((self.seed, restored["epoch"]))
                self._put_back(restored["now"])
        self._tell_epoch(position.epoch)
        before = self._captured(self._unchanged)
        if before.size_bytes > MAX_STATE_BYTES:
            raise TypeError(
                f"cannot save the state of a {type(self.sampler).__name__} in each checkpoint: it has "
                f"{counted_bytes(before.size_bytes)}; {_REMEDY}"
            )
        place = (self.seed, position.epoch)
        drawn = self._drawn_once(place)
        if not self._is_tested:
            self._is_tested = True
            self._put_back(before.to_state())
            if self._drawn_once(place) != drawn:
                raise TypeError(
                    f"cannot resume a DataLoader with a {type(self.sampler).__name__} in the middle of an epoch: it "
                    f"yields another order when it is asked again in the same state; {_REMEDY}"
                )
        order = xxhash.xxh3_64(repr(drawn).encode()).hexdigest()
        self._begun = {"before": before.to_state(), "order": order, "epoch": position.epoch}
        self._behind = _digest(self._captured(self._unchanged))
        if is_again and restored is not None:
            if restored["order"] != order:
                raise ValueError(
                    f"cannot go on in the middle of epoch {position.epoch}: the {type(self.sampler).__name__} yields "
                    f"another order than before the restart, because the script or the data are others, or because its "
                    f"order depends on something that no checkpoint has; {_REMEDY}"
                )
            self._put_back(restored["now"])
        return drawn

    def _tell_epoch(self, epoch: int) -> None:
        if self.set_epoch is not None:
            self.set_epoch(epoch)

    def _drawn_once(self, place: tuple[int, ...]) -> list[Any]:
        if _length_of(self.sampler) > MAX_DRAWN:  # known without a minute of drawing
            raise self._too_long()
        with seeded_by(place):
            drawn = [_copied(item) for item in itertools.islice(iter(self.sampler), MAX_DRAWN + 1)]
        if len(drawn) > MAX_DRAWN:
            raise self._too_long()
        return drawn

    def _too_long(self) -> TypeError:
        return TypeError(
            f"cannot use a {type(self.sampler).__name__} that yields more than {MAX_DRAWN} indices in an epoch: "
            f"the order of an epoch is drawn before its first batch; limit its length"
        )

    def _captured(self, unchanged: Mapping[str, bytes]) -> SavedSampler:
        try:
            return SavedSampler(self.sampler, self.dataset, unchanged)
        except NotSaveable as error:
            raise TypeError(f"cannot save the state of a {type(self.sampler).__name__}{error}; {_REMEDY}") from error

    def _put_back(self, state: Mapping[str, Any] | None) -> None:
        if state is None:
            return
        try:
            SamplerRestorer.restore(state, self.sampler)
        except NotRestorable as error:
            raise TypeError(f"cannot restore the state of a {type(self.sampler).__name__}: {error}") from error


def _length_of(sampler: Any) -> int:
    """How much a sampler yields, as it says itself; 0 if it does not say."""
    try:
        return len(sampler)
    except Exception:  # noqa: BLE001 - the script's code may raise anything where it has no length
        return 0


def _copied(indices: Any) -> Any:
    """A batch of indices as a list of its own, which the sampler does not change later."""
    return list(indices) if isinstance(indices, list | tuple) else indices


def _seeding(index: Any, place: tuple[int, ...]) -> Any:
    if type(index) is int:
        return SeedingIndex.at(index, place)
    return SeedingIndices(index, place) if type(index) is list else index


def _digest(state: SavedSampler) -> bytes:
    return state.digest() + repr(sorted(state.large.items())).encode()


def _number_at(batches: Sequence[tuple[Any, int]], position: Position) -> int:
    """The first batch that is left: the one that begins with the next example. Raises ValueError if none does."""
    consumed = position.examples
    if position.batch == 0 or consumed is None or consumed == 0:
        return position.batch
    for number, (_, end) in enumerate(batches, 1):
        if end >= consumed:
            if end == consumed:
                return number
            break
    else:
        return len(batches)
    raise ValueError(
        f"cannot go on in the middle of epoch {position.epoch}: {counted(consumed, 'example')} of it are consumed, and "
        f"no batch begins there; use the batches of before the restart until the epoch is over"
    )
