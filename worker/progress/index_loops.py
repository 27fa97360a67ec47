"""Loops over numbers and indices that have a position: `run.range` and `run.order`."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from worker.progress.epochs import EpochLoop
from worker.state.plain_values import NotSaveable, SavedValue
from worker.state.state_file import Position


class IndexLoops(EpochLoop):
    """A training that may go through numbers and indices of its own."""

    _given_order: Any = None  # the script's own array or list
    _gives_order_again = False  # which it gave in the epoch before, too

    def _check_loops(self) -> None:
        """Raises RuntimeError if a loop around the one that begins now would begin again after a restart."""
        raise NotImplementedError

    def _agree_on_order(self, digest: bytes) -> None:
        """Raises RuntimeError if other processes that train with this one go through another order."""

    def _say_other_order(self, before: int, now: int) -> None:
        """An order of another length than the restored one is used."""
        raise NotImplementedError

    def range(self, *bounds: int) -> Iterator[int]:
        """Yields what is left of Python's `range(*bounds)`: `for step in run.range(1000):`.

        Inside of `epochs`, of the present epoch; elsewhere of the run, and it ends early when `total_steps` are done.
        A number counts as used at the next `step_done`. Raises TypeError for what is no whole number.
        """
        numbers = range(*bounds)
        self._require_with("run.range")
        self._check_loops()
        return self._over_epochs("run.range", lambda: self._rest_of_range(numbers), repeats=False)

    def order(self, entries: Any, batch_size: int | None = None) -> Iterator[Any]:
        """Yields what is left of an array or list of indices, in its order: `for i in run.order(rng.permutation(n)):`.

        With `batch_size`, slices of so many of them; the last one may be shorter. A number `n` stands for 0 to n - 1.
        The order that an epoch began with is saved: after a restart within the epoch it is used, and not the one that
        the script draws anew. A restart with another batch size goes on at the next entry.
        Raises TypeError or ValueError for what has no order or can't be saved.
        """
        if batch_size is not None and (isinstance(batch_size, bool) or int(batch_size) < 1):
            raise ValueError(f"cannot make slices of {batch_size!r}; give run.order a batch_size of 1 or more")
        is_range = hasattr(entries, "__index__") and not hasattr(entries, "__len__")
        order = range(int(entries)) if is_range else entries
        if (
            isinstance(order, str | bytes | Mapping)
            or not hasattr(order, "__getitem__")
            or not hasattr(order, "__len__")
        ):
            raise TypeError(
                f"cannot go through a {type(entries).__name__} from the middle on; give run.order an array or a list "
                f"of indices, as in run.order(np.random.permutation(n))"
            )
        self._require_with("run.order")
        self._check_loops()
        return self._over_epochs("run.order", lambda: self._rest_of_order(order, batch_size), repeats=False)

    def _rest_of_range(self, numbers: Any) -> Iterator[int]:
        epoch = self._position.epoch
        for place in range(self._position.batch, len(numbers)):
            self._consumed = Position(epoch, place + 1, place + 1)
            yield numbers[place]

    def _rest_of_order(self, entries: Any, batch_size: int | None) -> Iterator[Any]:
        size, epoch, batch = batch_size or 1, self._position.epoch, self._position.batch
        order = entries if isinstance(entries, range) else self._keep_order(entries)
        examples = self._position.examples
        for start in range(batch * size if examples is None else examples, len(order), size):
            batch += 1
            self._consumed = Position(epoch, batch, min(start + size, len(order)))
            yield order[start] if batch_size is None else order[start : start + size]

    def _keep_order(self, entries: Any) -> Any:
        """The order of this epoch: the restored one if the epoch began with it, else `entries`, which are saved."""
        kept = self.state.order
        if kept is not None and len(kept) != len(entries):
            self._say_other_order(len(kept), len(entries))
            kept = None
        if kept is None:
            kept = entries
        elif self._put_back_generators is not None:  # the script has drawn an order that is not used
            self._put_back_generators()
        self._put_back_generators = None
        try:
            digest = SavedValue(kept).digest()
        except NotSaveable as error:
            raise TypeError(f"cannot save the order of an epoch{error}; give run.order numbers") from error
        self._agree_on_order(digest)
        self._gives_order_again, self._given_order = self._given_order is entries, entries
        self.state.order = copy.deepcopy(kept)  # the script may shuffle its own in place
        return self.state.order
