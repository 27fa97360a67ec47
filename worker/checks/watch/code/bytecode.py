"""Which names of a running function will be read before they are assigned again? A data flow over its bytecode.

A training loop carries a name from one step to the next if, from the call of `step_done` on, some way through the code
reads the name before it assigns it, and some loop around that call assigns it: `best`, `total += loss`. What each pass
assigns before it reads it, such as `batch` or `loss`, is not carried, however often it changes.

The code itself is followed, so this needs no source. Three things are simplified, each so that ordinary code causes no
false alarm:

* a `for` loop that is entered runs at least once, except those around the call: after a restart behind the last batch
  they may have nothing left;
* exceptions are not followed;
* what a function that is called reads of its caller is only known as far as `read_by_calls` says: names of the module
  that functions look up, and variables that nested functions share. What a nested function reads that each pass makes
  anew (`def closure(): ...`, `lambda: loss(batch)`) is read where its name is.

`stats["loss"]` with a constant is followed like a name, and called `stats['loss']`.
"""

import dis
import functools
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from worker.checks.reachability import global_names
from worker.checks.watch.code.control_flow import ENDS, ControlFlow, LiveNames, Loop
from worker.checks.watch.code.instructions import (
    ATTRIBUTE_LOADS,
    ATTRIBUTE_STORES,
    LOADS,
    STORES,
    Access,
    accesses_by_offset,
    accesses_of,
    constant_entries,
)

_COMPREHENSIONS = frozenset(["<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"])
_CALLS = ("CALL", "PRECALL")
_MAKES = frozenset(["MAKE_FUNCTION", "SET_FUNCTION_ATTRIBUTE", "PRECALL", "CALL"])
"""Between a function's code and the store of its name, with decorators."""

_READS_BY_NAME = frozenset(["getattr", "hasattr", "vars", "__dict__"])


@dataclass(frozen=True, slots=True)
class Nested:
    """A function that the code makes at an instruction. `name`: that is bound to it at once, None if none is.
    `reads`: names of the code around it that it may read whenever it is called."""

    code: types.CodeType
    made_at: int
    name: str | None
    reads: frozenset[str]


@functools.lru_cache(maxsize=256)
def flow_of(code: types.CodeType) -> "Flow":
    """The data flow of a function's code."""
    return Flow(code)


class Flow:
    """The names that one code object reads and assigns. `control`: which instructions follow which."""

    def __init__(self, code: types.CodeType) -> None:
        self.code = code
        self.control = ControlFlow(code)
        instructions = self.control.instructions
        entries = constant_entries(instructions)
        self._accesses = [
            (*accesses_of(instructions, number, entries), *_reads_of_comprehension(instruction))
            for number, instruction in enumerate(instructions)
        ]
        self._last_live: tuple[int, frozenset[str], LiveNames] | None = None

    def names_read(self, index: int, read_by_calls: Iterable[str] = ()) -> frozenset[str]:
        """The names that may be read behind an instruction before they are assigned."""
        live = self._live_around(index, frozenset(read_by_calls))
        return live.at(self.control.following(index, again=True, around=index))

    def carried(self, index: int, read_by_calls: Iterable[str] = ()) -> dict[str, int | None]:
        """The names that a loop around an instruction carries from pass to pass, with a line that assigns them.

        Each loop for itself: its body assigns the name and may read it before. What the body of an outer loop makes
        anew before its inner loop is not carried, although it is the same at all steps of the inner one.
        """
        live = self._live_around(index, frozenset(read_by_calls))
        lines: dict[str, int | None] = {}
        for loop in self.control.loops_around(index):
            read = live.at([self.control.beginning_of_pass(loop)])
            for name, line in self._stores_in(loop).items():
                if name in read:
                    lines.setdefault(name, line)
        return lines

    def made_in_loops(self, index: int, after_line: int = 0) -> frozenset[str]:
        """The names that the loops around an instruction assign, of those loops that begin behind a line."""
        loops = [loop for loop in self.control.loops_around(index) if (self.control.line_of(loop[0]) or 0) > after_line]
        return frozenset(name for loop in loops for name in self._stores_in(loop))

    def stored_behind(self, line: int) -> frozenset[str]:
        """The names that code behind a line assigns."""
        return frozenset(
            name
            for number, accesses in enumerate(self._accesses)
            for kind, name in accesses
            if kind != "load" and (self.control.line_of(number) or 0) > line
        )

    def attributes_set_before_loops(self, index: int, line: int) -> frozenset[str]:
        """The attributes, of any object, that code behind a line assigns before the loops around an instruction."""
        begins = [first for first, _ in self.control.loops_around(index) if (self.control.line_of(first) or 0) > line]
        return frozenset(
            str(instruction.argval)
            for number, instruction in enumerate(self.control.instructions[: min(begins, default=None)])
            if instruction.opname in ATTRIBUTE_STORES and (self.control.line_of(number) or 0) > line
        )

    def made_in_each_pass(self, index: int) -> frozenset[str]:
        """The names that the innermost loop around an instruction assigns before it reads them."""
        loops = self.control.loops_around(index)
        if not loops:
            return frozenset()
        live = self._live_around(index, frozenset())
        return frozenset(self._stores_in(loops[-1])) - live.at([self.control.beginning_of_pass(loops[-1])])

    def attribute_targets(self, index: int) -> frozenset[str]:
        """The attributes that are targets of the `for` loops around an instruction: `for self.epoch in ...`."""
        names = set()
        for first, last in self.control.loops_around(index):
            number, depth = first + 1, int(self.control.instructions[first].opname == "FOR_ITER")
            while depth > 0 and number < last:  # until the target has taken the item from the stack
                instruction = self.control.instructions[number]
                if instruction.opname in ATTRIBUTE_STORES:
                    names.add(str(instruction.argval))
                depth += dis.stack_effect(instruction.opcode, instruction.arg)
                number += 1
        return frozenset(names)

    @property
    def attributes_stored(self) -> frozenset[str]:
        """The attributes, of any object, that the code assigns."""
        return frozenset(str(code.argval) for code in self.control.instructions if code.opname in ATTRIBUTE_STORES)

    def assigns_first(
        self,
        name: str,
        *,
        is_attribute: bool,
        start: int | None = None,
        of: tuple[str, ...] | None = None,
        is_data: bool = False,
    ) -> bool:
        """Whether every way from the function's beginning to its end assigns an attribute (of any object) or a name of
        the module before it reads one of this name. `start`: an instruction in a loop, instead: every way behind it and
        back to it; where it takes a `for` loop's next item, every pass. `of`: the attribute's holder, as in
        `NameAccess`: what has another name there is another object. `is_data`: what is called there is another one,
        too."""
        if is_attribute and name in self.code.co_consts and not _READS_BY_NAME.isdisjoint(self.code.co_names):
            return False  # as in getattr(self, "count", 0)
        stores, loads = (ATTRIBUTE_STORES, ATTRIBUTE_LOADS) if is_attribute else (STORES, LOADS)
        accesses: list[tuple[Access, ...]] = []
        known = accesses_by_offset(self.code) if of is not None else {}
        for number, instruction in enumerate(self.control.instructions):
            is_end = number == start or (start is None and instruction.opname in (*ENDS, "YIELD_VALUE"))
            access = known.get(instruction.offset)
            is_other = access is not None and (access.holder not in (None, of) or (is_data and access.is_called))
            is_one = instruction.argval == name and not is_other
            if is_one and instruction.opname in stores:
                accesses.append((("store", name),))
            elif is_end or (is_one and instruction.opname in loads):
                accesses.append((("load", name),))
            else:
                accesses.append(())
        live = self.control.live_names(accesses, start)
        if start is not None and self.control.instructions[start].opname != "FOR_ITER":
            return name not in live.at(self.control.following(start, again=True, around=start))
        return name not in live.at([(0 if start is None else start + 1, False)])

    def may_read_attribute(self, name: str, offset: int | None = None) -> bool:
        """Whether some way from the function's beginning, from where its frame stands (`f_lasti`), or from the
        beginning of a pass of the loops there, which a restart does again, reads an attribute of this name, of any
        object, before it assigns one. What functions inside it do may come at any time."""
        if name in self.code.co_consts and not _READS_BY_NAME.isdisjoint(self.code.co_names):
            return True
        if any(
            flow_of(code).may_read_attribute(name) for code in self.code.co_consts if isinstance(code, types.CodeType)
        ):
            return True
        if name not in self.code.co_names:
            return False
        accesses: list[tuple[Access, ...]] = [
            (("load" if instruction.opname in ATTRIBUTE_LOADS else "store", name),)
            if instruction.argval == name and instruction.opname in (*ATTRIBUTE_LOADS, *ATTRIBUTE_STORES)
            else ()
            for instruction in self.control.instructions
        ]
        start, begins = None, [(0, False)]
        if offset is not None:
            start = self.control.index_at(offset)
            begins += self.control.following(start, again=True, around=start)
            begins += map(self.control.beginning_of_pass, self.control.loops_around(start))
        return name in self.control.live_names(accesses, start).at(begins)

    def nested_in_loops(self, index: int) -> list[Nested]:
        """The functions that each pass of a loop around an instruction makes anew."""
        loops = self.control.loops_around(index)
        return [nested for nested in self._nested if any(first <= nested.made_at <= last for first, last in loops)]

    def _accesses_with(self, read_by_calls: Iterable[str], index: int) -> list[tuple[Access, ...]]:
        anew = self.nested_in_loops(index)
        shared = [] if self._is_module else [nested.reads for nested in self._nested if nested not in anew]
        by_calls = tuple(("load", name) for name in frozenset(read_by_calls).union(*shared))
        accesses = [
            (*by_calls, *own) if by_calls and instruction.opname.startswith(_CALLS) else own
            for instruction, own in zip(self.control.instructions, self._accesses, strict=True)
        ]
        by_name = {nested.name: nested.reads for nested in anew if nested.name is not None}
        for nested in anew:
            reads = tuple(("load", name) for name in sorted(_with_reads_of(nested.reads, by_name)))
            places = [number for number, own in enumerate(self._accesses) if ("load", nested.name) in own]
            for number in places if nested.name is not None else [nested.made_at]:
                accesses[number] = (*reads, *accesses[number])
        return accesses

    def _live_around(self, index: int, read_by_calls: frozenset[str]) -> LiveNames:
        """What may be read in the loops around an instruction. Several questions follow one another about the same."""
        if self._last_live is None or self._last_live[:2] != (index, read_by_calls):
            live = self.control.live_names(self._accesses_with(read_by_calls, index), index)
            self._last_live = index, read_by_calls, live
        return self._last_live[2]

    @property
    def _is_module(self) -> bool:
        return self.code.co_name == "<module>"

    @functools.cached_property
    def _nested(self) -> list[Nested]:
        """The functions that this code makes. They may be called at any time; comprehensions run where they stand."""
        found = []
        for number, instruction in enumerate(self.control.instructions):
            code = _code_in(instruction)
            if code is not None and code.co_name not in _COMPREHENSIONS:
                found.append(Nested(code, number, self._name_bound_behind(number), self._reads_of(code)))
        return found

    def _reads_of(self, code: types.CodeType) -> frozenset[str]:
        return global_names(code) | frozenset(code.co_freevars).intersection(self.code.co_cellvars)

    def _name_bound_behind(self, number: int) -> str | None:
        """The name of the function that is made there, also behind its decorators."""
        for later in self.control.instructions[number + 1 :]:
            if later.opname in STORES:
                return str(later.argval)
            if later.opname not in _MAKES:
                return None
        return None

    def _stores_in(self, loop: Loop) -> dict[str, int | None]:
        """The names that a loop assigns, with the first line that does it."""
        first, last = loop
        lines: dict[str, int | None] = {}
        for number in range(first, last + 1):
            for kind, name in self._accesses[number]:
                if kind == "store":
                    lines.setdefault(name, self.control.line_of(number))
        return lines


def _code_in(instruction: dis.Instruction) -> types.CodeType | None:
    """The code of a function that an instruction is about to make."""
    code = instruction.argval
    return code if instruction.opname == "LOAD_CONST" and isinstance(code, types.CodeType) else None


def _reads_of_comprehension(instruction: dis.Instruction) -> tuple[Access, ...]:
    """The names of the module that it reads where it stands; other names of the code around it are loaded there."""
    code = _code_in(instruction)
    if code is None or code.co_name not in _COMPREHENSIONS:
        return ()
    return tuple(("load", name) for name in sorted(global_names(code)))


def _with_reads_of(names: frozenset[str], functions: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Names, and what the functions among them read."""
    read, waiting = set(names), list(names)
    while waiting:
        new = functions.get(waiting.pop(), frozenset()) - read
        read |= new
        waiting += new
    return frozenset(read)
