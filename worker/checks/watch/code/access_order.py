"""What does a step do first with an attribute, or with a name of a module: assign it, or read it?

An object often holds what the last step computed, `self.loss`, and each step assigns it anew before anything reads it.
That changes from step to step, and still no restart loses it. Which attributes are of this kind is seen by watching
some steps, instruction by instruction, in the functions that use such a name: what each assigns first, by a function
that always assigns it, is made anew. An early step and a later one may call different functions (an average begins as
a copy), so one that has read it first counts. Python traces only those functions; frameworks run at their full speed.
"""

import sys
import sysconfig
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from worker.checks.watch.code.bytecode import flow_of
from worker.checks.watch.code.instructions import NameAccess, accesses_by_offset
from worker.checks.watch.script_objects import are_related, kind_of

MAX_EVENTS = 300_000  # instructions; about half a second
UNKNOWN = object()
"""Stands for what has an attribute and no name."""
_Trace = Callable[[types.FrameType, str, Any], Any]


@dataclass(frozen=True, slots=True)
class _First:
    """The first access. `number`: whether it came behind a step, and how many came before it. `owner`: the kind of what
    has the attribute, if it is known: `kind_of` it. `is_called`: at once, so that it was no data."""

    number: tuple[bool, int]
    kind: str
    owner: Any
    code: types.CodeType
    offset: int
    is_called: bool


class AccessOrder:
    """Watches one step after another, each from `begin` to `end`, on this thread."""

    def __init__(self, unwatched: tuple[str, ...]) -> None:
        """`unwatched`: beginnings of paths of code that isn't looked at."""
        self._names: frozenset[str] = frozenset()
        self._unwatched = unwatched
        # by name, kind of name, id of what has it, and whether what has no name is only called
        self._first: dict[tuple[str, bool, int | None, bool], _First] = {}
        self._steps: list[Mapping[tuple[str, bool, int | None, bool], _First]] = []
        self._in_code: dict[types.CodeType, Mapping[int, NameAccess]] = {}
        self._events = 0
        self._before: _Trace | None = None
        self._frames: list[tuple[types.FrameType, Any, bool, bool]] = []
        self._boundaries: dict[types.CodeType, int] = {}
        self._is_on = False
        self._is_behind = True  # the end of the step before runs

    def begin(self, names: Collection[str], frames: Iterable[types.FrameType]) -> None:
        """Begins to watch, behind a step. `names`: attributes and names of modules. `frames`: those that run now, which
        Python does not trace by itself."""
        if self._names != frozenset(names):
            self._names = frozenset(names)
            self._in_code.clear()
        self._first = {}
        self._steps.append(self._first)
        self._events, self._is_behind = 0, True
        self._boundaries.clear()
        self._before = cast("_Trace | None", sys.gettrace())
        for frame in frames:
            self._boundaries[frame.f_code] = frame.f_lasti
            if self._accesses(frame.f_code):
                self._frames.append((frame, frame.f_trace, frame.f_trace_opcodes, frame.f_trace_lines))
                frame.f_trace = self._local_trace(frame, frame.f_trace)
        self._is_on = True
        sys.settrace(self._on_call)

    def begin_step(self) -> None:
        """The next step begins, from whose boundary a restart goes on: what came before it is the end of a step, and is
        taken as if it came last."""
        if not self._is_on or not self._is_behind:
            return
        self._is_behind = False
        running: dict[types.CodeType, int] = {}
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            running.setdefault(frame.f_code, frame.f_lasti)
            frame = frame.f_back
        self._boundaries = {code: running[code] for code in self._boundaries if code in running}

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

    def made_anew(self, name: str, owner: int | None = None, kind: Any = None, *, is_data: bool = False) -> bool | None:
        """Whether each step assigns this attribute, or this name of a module, before it reads it; None if no watched
        step did either. `owner`: the id of the object that has the attribute: another one may have an attribute of
        that name. `kind`: `kind_of` that object, if it is known: what a step does with an object that it makes, and
        that was another one in a watched step, others of its kind show. `is_data`: it can't be called, so that the
        `norm` of `gradient().norm()` is another one."""
        orders = list(self._orders(name, owner, kind, is_data=is_data))
        if not orders:
            return None
        return all(first.kind == "store" and self._always_assigns(name, first, is_data=is_data) for first in orders)

    def has_seen(self, name: str) -> bool:
        """Whether a watched step used an attribute, of any object, or a name of a module of this name."""
        return any(known == name for step in self._steps for known, *_ in step)

    def read_first(self, name: str, owner: int | None = None, kind: Any = None, *, is_data: bool = False) -> bool:
        """Whether a watched step read it before it assigned it. The arguments: as of `made_anew`."""
        return any(first.kind == "load" for first in self._orders(name, owner, kind, is_data=is_data))

    def _orders(self, name: str, owner: int | None, kind: Any, *, is_data: bool) -> Iterator[_First]:
        for step in self._steps:
            firsts = [
                (key, first) for key, first in step.items() if key[0] == name and not (is_data and first.is_called)
            ]
            of_attribute = _first_of([(key[2], first) for key, first in firsts if key[1]], owner, kind)
            of_module = _first_of([(key[2], first) for key, first in firsts if not key[1]], None, None)
            yield from (first for first in (of_attribute, None if isinstance(kind, type) else of_module) if first)

    def _always_assigns(self, name: str, first: _First, *, is_data: bool) -> bool:
        flow = flow_of(first.code)
        access = accesses_by_offset(first.code)[first.offset]
        boundary = self._boundaries.get(first.code)
        start = None if boundary is None else flow.control.index_at(boundary)
        return flow.assigns_first(
            name, is_attribute=access.is_attribute, start=start, of=access.holder, is_data=is_data
        )

    def _note(self, frame: types.FrameType, access: NameAccess) -> None:
        owner = UNKNOWN if access.holder is None else named_in(frame, access.holder)
        is_unknown = owner is UNKNOWN
        key = access.name, access.is_attribute, None if is_unknown else id(owner), is_unknown and access.is_called
        known = self._first.get(key)
        if known is None or known.number[0] > self._is_behind:
            number = self._is_behind, self._events
            self._first[key] = _First(
                number, access.kind, kind_of(owner), frame.f_code, frame.f_lasti, access.is_called
            )

    def _accesses(self, code: types.CodeType) -> Mapping[int, NameAccess]:
        accesses = self._in_code.get(code)
        if accesses is None:
            accesses = {}
            if not self._names.isdisjoint(code.co_names) and not code.co_filename.startswith(self._unwatched):
                accesses = {at: access for at, access in accesses_by_offset(code).items() if access.name in self._names}
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
                    self._note(frame, access)
                self._events += 1
                if self._events > MAX_EVENTS:
                    self.end()
            elif theirs is not None:
                theirs = theirs(frame, event, argument)
            return on_event

        return on_event


def _first_of(firsts: Sequence[tuple[int | None, _First]], owner: int | None, kind: Any) -> _First | None:
    """The first of some accesses, each with the id of what has the name, that may be of one object."""
    is_known = owner is not None and any(known == owner for known, _ in firsts)
    some = [  # what has no name may be any object
        first
        for known, first in firsts
        if known is None or (known == owner if is_known else are_related(first.owner, kind))
    ]
    return min(some, key=lambda first: first.number, default=None)


def named_in(frame: types.FrameType, names: tuple[str, ...]) -> Any:
    """What `self.trainer` is in a frame, from its names; `UNKNOWN` if an attribute is computed."""
    variable, *attributes = names
    value = frame.f_locals.get(variable, frame.f_globals.get(variable, UNKNOWN))
    for attribute in attributes:
        value = UNKNOWN if value is UNKNOWN else _held(value, attribute)
    return value


def _held(value: Any, attribute: str) -> Any:
    own = getattr(value, "__dict__", {})
    if attribute in own:
        return own[attribute]
    found = next((vars(kind)[attribute] for kind in type(value).__mro__ if attribute in vars(kind)), UNKNOWN)
    if isinstance(found, types.MemberDescriptorType):  # of a slot
        return getattr(value, attribute, UNKNOWN)
    return UNKNOWN if hasattr(type(found), "__get__") else found


def unwatched_code() -> tuple[str, ...]:
    """Where the code of Python and of the frameworks is, which keeps its own state."""
    paths = ["<frozen ", sysconfig.get_path("stdlib") + "/"]  # the former: of the import system
    for package in ("tensorflow", "keras", "tf_keras", "torch", "numpy", "jax", "jaxlib", "worker", "supervisor"):
        paths += [f"{path}/" for path in getattr(sys.modules.get(package), "__path__", ())]
    # site-packages lie inside of the standard library's folder in some environments
    return tuple(path for path in paths if not path.endswith("site-packages/"))
