"""What the head of an epoch's body, which stands before its batches, takes from random generators.

A restart within the epoch runs the head again, with the generators of the checkpoint, so what it draws is another
thing. Where the head begins is known inside of `epochs`. Elsewhere the script asks for `run.epoch`, perhaps well before
its loop: then only a place inside of the loop, or in its first line, is one where a body begins.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

Place = tuple[CodeType, int]
"""Code of the script, and a line in it."""


@dataclass(frozen=True, slots=True)
class _BodyBeginning:
    """Where a body may have begun (None: it did), and the random generators there."""

    place: Place | None
    generators: bytes | None
    seeds: Any


class EpochHead:
    """The head of the body that runs now. `read_generators`: a digest of the generators that checkpoints hold.
    `read_seeds`: where the sequence is from which the framework takes seeds."""

    def __init__(self, read_generators: Callable[[], bytes], read_seeds: Callable[[], Any]) -> None:
        self.draws = False
        """Whether the head of the first body drew random numbers."""
        self.seeds_before: Any = None
        """`read_seeds()` where this body began, once the batches follow; None if it is not known where that was."""
        self._read_generators = read_generators
        self._read_seeds = read_seeds
        self._beginnings: list[_BodyBeginning] = []

    def begin(self, frame: FrameType | None, *, is_first: bool) -> None:
        """A body begins; with `frame`, the script asks there for the epoch. `is_first`: before the first step."""
        place = None if frame is None else (frame.f_code, frame.f_lineno)
        if place is None:
            self._beginnings = []
        elif any(beginning.place == place for beginning in self._beginnings):
            return
        self._beginnings.append(
            _BodyBeginning(place, self._read_generators() if is_first else None, self._read_seeds())
        )

    def settle(self, inside: Callable[[Sequence[Place]], Place | None]) -> None:
        """The batches follow. `inside`: the first of the places that is in a loop around them, if there is one."""
        if not self._beginnings:
            return
        certain = next((beginning for beginning in self._beginnings if beginning.place is None), None)
        if certain is None:
            place = inside([beginning.place for beginning in self._beginnings if beginning.place is not None])
            certain = next((beginning for beginning in self._beginnings if beginning.place == place), None)
        self.seeds_before = None if certain is None else certain.seeds
        before = (certain or self._beginnings[-1]).generators
        if before is not None:
            self.draws = self.draws or before != self._read_generators()
        self._beginnings = []
