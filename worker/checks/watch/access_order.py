"""What does one step do first with an attribute, or with a name of a module: assign it, or read it?

An object often holds what the last step computed, `self.loss`, and each step assigns it anew before anything reads it.
That changes from step to step, and still no restart loses it. Which attributes are of this kind is seen by watching one
step, instruction by instruction, in the functions that use such a name: what is assigned first, by a function that
always assigns it, is made anew. Python traces only those functions; frameworks run at their full speed.
"""

import sys
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, cast

from worker.checks.watch.bytecode import flow_of
from worker.checks.watch.instructions import accesses_by_offset

MAX_EVENTS = 300_000  # instructions; about half a second
_Trace = Callable[[types.FrameType, str, Any], Any]


class AccessOrder:
    """Watches from `begin` to `end`, on this thread."""

    def __init__(self, names: Collection[str], unwatched: tuple[str, ...]) -> None:
        """`names`: attributes and names of modules. `unwatched`: beginnings of paths of code that isn't looked at."""
        self._names = frozenset(names)
        self._unwatched = unwatched
        self._first: dict[tuple[str, bool], tuple[str, types.CodeType, int]] = {}
        self._in_code: dict[types.CodeType, Mapping[int, tuple[str, str, bool]]] = {}
        self._events = 0
        self._before: _Trace | None = None
        self._frames: list[tuple[types.FrameType, Any, bool, bool]] = []
        self._boundaries: dict[types.CodeType, int] = {}
        self._is_on = False

    def begin(self, frames: Iterable[types.FrameType]) -> None:
        """Begins to watch. `frames`: those that run now, which Python does not trace by itself."""
        self._before = cast("_Trace | None", sys.gettrace())
        for frame in frames:
            self._boundaries[frame.f_code] = frame.f_lasti
            if self._accesses(frame.f_code):
                self._frames.append((frame, frame.f_trace, frame.f_trace_opcodes, frame.f_trace_lines))
                frame.f_trace = self._local_trace(frame, frame.f_trace)
        self._is_on = True
        sys.settrace(self._on_call)

    def end(self) -> None:
        """Ends it, and puts back what traced before, unless another has begun to trace meanwhile."""
        if not self._is_on:
            return
        self._is_on = False
        if sys.gettrace() == self._on_call:
            sys.settrace(self._before)
        for frame, trace, opcodes, lines in self._frames:
            frame.f_trace, frame.f_trace_opcodes, frame.f_trace_lines = trace, opcodes, lines
        self._frames.clear()

    def made_anew(self, name: str) -> bool:
        """Whether each step assigns this attribute, or this name of a module, before it reads it."""
        orders = [self._first[key] for key in ((name, True), (name, False)) if key in self._first]
        return bool(orders) and all(
            kind == "store" and self._always_assigns(name, code, offset) for kind, code, offset in orders
        )

    def _always_assigns(self, name: str, code: types.CodeType, offset: int) -> bool:
        flow = flow_of(code)
        is_attribute = accesses_by_offset(code)[offset][2]
        boundary = self._boundaries.get(code)
        start = None if boundary is None else flow.index_at(boundary)
        return flow.assigns_first(name, is_attribute=is_attribute, start=start)

    def _accesses(self, code: types.CodeType) -> Mapping[int, tuple[str, str, bool]]:
        accesses = self._in_code.get(code)
        if accesses is None:
            accesses = {}
            if not self._names.isdisjoint(code.co_names) and not code.co_filename.startswith(self._unwatched):
                accesses = {at: access for at, access in accesses_by_offset(code).items() if access[1] in self._names}
            self._in_code[code] = accesses
        return accesses

    def _on_call(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        if not self._is_on and sys.gettrace() == self._on_call:
            sys.settrace(self._before)  # one that began after this one and ended later put it back
        theirs = self._before(frame, event, argument) if self._before is not None else None
        if not self._is_on or not self._accesses(frame.f_code):
            return theirs
        return self._local_trace(frame, theirs)

    def _local_trace(self, frame: types.FrameType, theirs: _Trace | None) -> _Trace:
        frame.f_trace_opcodes = True
        frame.f_trace_lines = theirs is not None
        accesses = self._accesses(frame.f_code)

        def on_event(frame: types.FrameType, event: str, argument: Any) -> Any:
            nonlocal theirs
            if event == "opcode":
                access = accesses.get(frame.f_lasti)
                if access is not None:
                    kind, name, is_attribute = access
                    self._first.setdefault((name, is_attribute), (kind, frame.f_code, frame.f_lasti))
                self._events += 1
                if self._events > MAX_EVENTS:
                    self.end()
            elif theirs is not None:
                theirs = theirs(frame, event, argument)
            return on_event

        return on_event
