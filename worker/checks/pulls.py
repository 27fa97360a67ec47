"""Which loops follow the run? Those that pull from it: they stand at their next pass when the run hands something out.

When one of the run's generators is resumed, each frame around it that stands at a FOR_ITER instruction is in a loop
that pulls from the run, whatever lies between: enumerate, tqdm, zip, a generator of the script's. So nothing has to be
concluded from names.
"""

import dis
import sys
import threading
import types
from typing import Any

_FOR_ITER = dis.opmap["FOR_ITER"]
_GROUPS = 3  # steps after which it is clear whether a loop reads ahead

Site = tuple[types.CodeType, int]
"""An instruction: the code of a frame, and the offset in it."""


class Pulls:
    """What pulls from the generators of one run, and how."""

    def __init__(self) -> None:
        self._epochs: set[Site] = set()
        self._readers: set[Site] = set()
        self._thread = 0
        self._groups: list[int] = []  # how many batches each of the first steps has taken
        self._taken = 0
        self.reads_ahead = False
        """Whether batches are taken before the steps that train on them, so that no position is that of a step."""
        self.asked_batch = False
        """Whether the script asked for the number of the next batch before the loop over them began."""
        self.first_item: Any = None
        """What was handed out for the first step."""

    def record_epochs(self) -> None:
        """The run is asked for its epoch: records the loops that pull."""
        self._epochs |= _standing_loops()

    def begin_reading(self, asked_batch: bool) -> None:
        """A loop over `batches`, `range` or `order` begins: records the loops that pull."""
        self._readers |= _standing_loops()
        self._thread, self.asked_batch = threading.get_ident(), asked_batch

    def hand_out(self, item: Any) -> None:
        """The loop gets one more batch."""
        self._taken += 1
        self.first_item = None if self._groups else item

    def end_step(self, is_reading: bool) -> bool:
        """A step is done. Returns whether it shows for the first time that the loop reads ahead."""
        before = self.reads_ahead
        if len(self._groups) < _GROUPS:
            self._groups.append(self._taken)
            one, *others = self._groups
            self.reads_ahead = before or (len(others) == _GROUPS - 1 and one > others[0] == 1 >= others[1])
        self._taken = 0
        self.reads_ahead = self.reads_ahead or (is_reading and self._thread != threading.get_ident())
        return self.reads_ahead and not before

    def of_epochs(self, code: types.CodeType, line: int, column: int) -> bool:
        """Whether the loop at this place of the source pulled from `epochs`."""
        return any(_is_at(site, code, line, column) for site in self._epochs)

    def of_reader(self, code: types.CodeType, line: int, column: int) -> bool:
        """Whether the loop at this place of the source pulled from `batches`, `range` or `order`."""
        return any(_is_at(site, code, line, column) for site in self._readers)

    def reads_inside(self, code: types.CodeType, first: int, last: int) -> bool:
        """Whether something between two lines pulled from `batches`, `range` or `order`."""
        return any(
            own is code and first <= (list(code.co_positions())[offset // 2][0] or 0) <= last
            for own, offset in self._readers
        )


def _standing_loops() -> set[Site]:
    frame: types.FrameType | None = sys._getframe(2)
    sites = set()
    while frame is not None:
        sites.add((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return sites


def _is_at(site: Site, code: types.CodeType, line: int, column: int) -> bool:
    """Whether an instruction gets the next item of the loop whose statement, or what it runs over, begins there."""
    own, offset = site
    if own is not code or code.co_code[offset] != _FOR_ITER:
        return False
    found_line, _, found_column, _ = list(code.co_positions())[offset // 2]
    return found_line == line and found_column in (None, column)
