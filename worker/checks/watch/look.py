"""One look of the watch: what it has reached, and which of its changes would not come back after a restart: those that
no checkpoint holds, that are not made anew before anything reads them, and that are not the time."""

import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from worker.checks.watch.clocks import a_clock_showed
from worker.checks.watch.code.access_order import AccessOrder
from worker.checks.watch.code.attribute_readers import AttributeReaders
from worker.checks.watch.code.fills import is_filled_first
from worker.checks.watch.code.instructions import measured_names, seeks, stored_names
from worker.checks.watch.code.loop_frames import LoopFrame
from worker.checks.watch.kept.kept_values import Kept, Reached, short_name
from worker.checks.watch.named_paths import NamedPaths
from worker.checks.watch.reached_values import Search
from worker.checks.watch.replaced_objects import Placed

_DATA = ("value", "array", "container", "mapping")
"""The kinds of what can't be called."""


class Look:
    """What one look has reached (`search`) and what checkpoints hold (`kept`), and what its changes mean."""

    def __init__(
        self,
        search: Search,
        kept: Kept,
        frames: Sequence[LoopFrame],
        until: float,
        epoch: int,
        named: NamedPaths,
        order: AccessOrder | None,
        readers: AttributeReaders,
        *,
        codes: Sequence[types.CodeType],
        is_first: bool,
        is_other_epoch: bool,
        clocks_since: float,
        gone: Collection[str] = (),
    ) -> None:
        """`until`: when to end, as for `search`. `order`: what the watched steps have shown; None before the first.
        `readers`: the script's code, and `codes` what was known of it at the last look, with that of the loops.
        `is_other_epoch`: than that of the look before. `clocks_since`: from when on a clock may have shown what is
        there now. `gone`: names of which the array of the last look is gone, so that another may have its id."""
        self.search = search
        self.kept = kept
        self.frames = frames
        self.until = until
        self.epoch = epoch
        self.is_first = is_first
        self.is_other_epoch = is_other_epoch
        self._codes = codes
        self._named = named
        self._order = order
        self._readers = readers
        self._clocks_since = clocks_since
        self._gone = gone
        self._in_loops = {name: frame for frame in reversed(frames) for name in frame.made_in_loops}
        self._by_call = {name for frame in frames[:-1] for name in frame.made_by_call} - self._in_loops.keys()
        heads = [names for frame in frames for names in frame.attributes_set_in_heads]
        targets = [frame.attribute_targets for frame in frames]
        self._set_in_step = frozenset().union(*heads[:1])
        # between two looks in an epoch only the innermost loop has begun another pass
        self._set_in_heads = frozenset().union(*(heads[1:] if is_other_epoch else ()), *targets)

    def is_lost(self, now: Reached, before: Reached | None) -> bool:
        """Of what has changed, and what it was."""
        path = now.path
        if now.kind == "default" or self._named.has_around(path):
            return False  # the class has it, and its path says so
        frame = self._in_loops.get(path)
        is_rebound = before is None or now.identity == 0 or path in self._gone or now.identity != before.identity
        if frame is not None and path not in frame.carried and is_rebound:
            return False  # each pass of a loop makes it anew
        if path in self._by_call and now.owner is None and is_rebound:
            return False  # so does each call, from what the loops around it carry
        if self.is_kept_or_time(now):
            return False
        if frame is not None or now.binding is None:
            return True
        if now.binding in self._set_in_heads:
            return False
        # each step assigns it before it reads it, as far as the watched steps have shown
        if self._order is not None and self._order.has_seen(now.binding):
            owner = self._readers.kind_at(now.owner)
            is_made_anew = self._order.made_anew(now.binding, now.owner, owner, is_data=now.kind in _DATA)
            return not is_made_anew or self._is_made_of_the_one_before(now, before)
        return now.binding not in self._set_in_step

    def _is_made_of_the_one_before(self, now: Reached, before: Reached | None) -> bool:
        """Whether what has it is a new object at a place that a step reads before it puts the new one there, as in
        `self.top = Link(value, self.top)`."""
        place = self.search.objects.get(now.path.rpartition(".")[0])
        if self._order is None or before is None or now.owner == before.owner or place is None or place.binding is None:
            return False
        is_kept = (place.owner, place.binding) in self.kept.references or place.binding in self._set_in_heads
        return not is_kept and self._order.read_first(
            place.binding, place.owner, self._readers.kind_at(place.owner), is_data=False
        )

    def made_anew(self) -> Iterator[tuple[str, Any]]:
        """The names that passes of the loops and calls assign anew, with their values."""
        for frame in self.frames:
            for name, value in frame.frame.f_locals.items():
                if (self._in_loops.get(name) is frame and name not in frame.carried) or (
                    name in self._by_call and name in frame.made_by_call
                ):
                    yield name, value

    def is_set_in_heads(self, reached: Reached) -> bool:
        """Whether the loop sets it anew before the batches of each epoch."""
        return reached.binding in self._set_in_heads

    def is_unread(self, now: Reached) -> bool:
        """Whether it is a result that nothing reads before it is set again, neither in a watched step nor in any
        code of the script."""
        if now.binding is None or now.kind not in _DATA:
            return False
        kind = self._readers.kind_at(now.owner)
        is_read = self._order is None or self._order.read_first(now.binding, now.owner, kind, is_data=True)
        return not (is_read or self._readers.may_read(now.binding, now.owner))

    def is_filled_first(self, now: Reached) -> bool:
        """Whether it is a buffer that each step fills whole before anything reads it."""
        if now.kind not in ("array", "container") or now.binding is None:
            return False
        values = (frame.value_at(now.path) for frame in self.frames)
        buffer = next((value for value in values if id(value) == now.identity), None)
        return buffer is not None and is_filled_first(buffer, now.binding, self.frames, self._codes)

    def is_place_lost(
        self, path: str, placed: Placed, values: Mapping[str, Reached], before: Mapping[str, Reached]
    ) -> bool:
        """Of a place that holds another object. `values`, `before`: what this look and the last one have reached."""
        if placed.container is None:
            is_kept = (placed.owner, placed.binding) in self.kept.references
            return not is_kept and self.is_lost(Reached(path, "object", 0, 0, placed.owner, placed.binding), None)
        now, then = values.get(placed.container), before.get(placed.container)
        if now is None or then is None:
            return False  # checkpoints have it, or it's made anew
        if now.identity == then.identity:
            return self.is_lost(Reached(placed.container, "object", 0, now.identity), then)
        return self.is_lost(now, then)

    def is_kept_or_time(self, reached: Reached) -> bool:
        """Whether a checkpoint holds it, it may begin anew, or a clock has shown it."""
        return self.kept.has(reached) or self._named.is_exempt(reached.path) or self.is_time(reached.value)

    def is_time(self, value: object) -> bool:
        """Whether a clock has shown it since."""
        return a_clock_showed(value, self._clocks_since)

    def is_measured(self, reached: Reached) -> bool:
        """Whether it tells something of this process, such as its pid or how long a step took, and nothing else."""
        if any(map(self.is_time, reached.numbers or ())):
            return True
        return any((reached.binding or short_name(reached.path)) in measured_names(code) for code in self._codes)

    @cached_property
    def seeks(self) -> bool:
        """Whether the script's code sets a file's position itself."""
        return any(map(seeks, self._codes))

    def place_of(self, reached: Reached) -> str | None:
        """The line that assigns what changed."""
        return place_in(self._codes, reached)


def place_in(codes: Iterable[types.CodeType], reached: Reached) -> str | None:
    """The line in the code of functions that assigns a value, as FILE:LINE; None if there is none."""
    name = reached.binding or short_name(reached.path)
    for code in sorted(codes, key=lambda code: code.co_name == "__init__"):
        line = stored_names(code).get(name)
        if line is not None and not code.co_filename.startswith("<"):  # as of a dataclass' own __init__
            return f"{Path(code.co_filename).name}:{line}"
    return None
