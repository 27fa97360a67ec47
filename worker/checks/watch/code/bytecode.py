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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from worker.checks.reachability import global_names
from worker.checks.watch.code.instructions import (
    ATTRIBUTE_LOADS,
    ATTRIBUTE_STORES,
    LOADS,
    STORES,
    Access,
    accesses_of,
    constant_entries,
    is_method,
)

_ENDS = frozenset(["RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "INTERPRETER_EXIT"])
_COMPREHENSIONS = frozenset(["<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"])
_ALWAYS_JUMPS = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE")
_CALLS = ("CALL", "PRECALL")
_MAKES = frozenset(["MAKE_FUNCTION", "SET_FUNCTION_ATTRIBUTE", "PRECALL", "CALL"])
"""Between a function's code and the store of its name, with decorators."""

_READS_BY_NAME = frozenset(["getattr", "hasattr", "vars", "__dict__"])

_Node = tuple[int, bool]
"""An instruction, and whether a jump backwards led to it."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a name is assigned. `line`: of its source, None if it is not known."""

    name: str
    line: int | None


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
    """The instructions of one code object, what each accesses, and which may follow it.

    A node is an instruction and whether it was reached by a jump backwards, which matters at the head of a `for` loop:
    only then may the loop end.
    """

    def __init__(self, code: types.CodeType) -> None:
        self.code = code
        self.instructions: list[dis.Instruction] = []
        self._index: dict[int, int] = {}  # by offset; a jump may lead to the prefix of an instruction
        for instruction in dis.get_instructions(code):
            self._index[instruction.offset] = len(self.instructions)
            if instruction.opname != "EXTENDED_ARG":
                self.instructions.append(instruction)
        entries = constant_entries(self.instructions)
        self._accesses = [
            tuple(accesses_of(self.instructions, number, entries)) for number in range(len(self.instructions))
        ]
        self._last_live: tuple[int, frozenset[str], _Live] | None = None

    def index_at(self, offset: int) -> int:
        """The instruction at a frame's `f_lasti`, which may stand on what belongs to the instruction."""
        return max((number for start, number in self._index.items() if start <= offset), default=0)

    def line_of(self, index: int) -> int | None:
        """The line of the source that an instruction comes from."""
        positions = self.instructions[index].positions
        return None if positions is None else positions.lineno

    def names_read(self, index: int, read_by_calls: Iterable[str] = ()) -> frozenset[str]:
        """The names that may be read behind an instruction before they are assigned."""
        live = self._live_around(index, frozenset(read_by_calls))
        return live.at(self._following(index, again=True, around=index))

    def carried(self, index: int, read_by_calls: Iterable[str] = ()) -> dict[str, Stored]:
        """The names that a loop around an instruction carries from pass to pass, with a place where it assigns them.

        Each loop for itself: its body assigns the name and may read it before. What the body of an outer loop makes
        anew before its inner loop is not carried, although it is the same at all steps of the inner one.
        """
        live = self._live_around(index, frozenset(read_by_calls))
        stores: dict[str, Stored] = {}
        for first, last in self._loops_around(index):
            read = live.at([(self._beginning_of_pass(first, last), False)])
            for name, stored in self._stores_in(first, last).items():
                if name in read:
                    stores.setdefault(name, stored)
        return stores

    def made_in_loops(self, index: int) -> frozenset[str]:
        """The names that the loops around an instruction assign."""
        return frozenset(name for first, last in self._loops_around(index) for name in self._stores_in(first, last))

    def made_in_each_pass(self, index: int) -> frozenset[str]:
        """The names that the innermost loop around an instruction assigns before it reads them."""
        loops = self._loops_around(index)
        if not loops:
            return frozenset()
        first, last = loops[-1]
        read = self._live_around(index, frozenset()).at([(self._beginning_of_pass(first, last), False)])
        return frozenset(self._stores_in(first, last)) - read

    def attribute_targets(self, index: int) -> frozenset[str]:
        """The attributes that are targets of the `for` loops around an instruction: `for self.epoch in ...`."""
        names = set()
        for first, last in self._loops_around(index):
            number, depth = first + 1, int(self.instructions[first].opname == "FOR_ITER")
            while depth > 0 and number < last:  # until the target has taken the item from the stack
                instruction = self.instructions[number]
                if instruction.opname in ATTRIBUTE_STORES:
                    names.add(str(instruction.argval))
                depth += dis.stack_effect(instruction.opcode, instruction.arg)
                number += 1
        return frozenset(names)

    def assigns_first(self, name: str, *, is_attribute: bool, start: int | None = None) -> bool:
        """Whether every way from the function's beginning to its end assigns an attribute (of any object) or a name of
        the module before it reads one of this name. `start`: an instruction in a loop, instead: every way behind it and
        back to it."""
        if is_attribute and name in self.code.co_consts and not _READS_BY_NAME.isdisjoint(self.code.co_names):
            return False  # as in getattr(self, "count", 0)
        stores, loads = (ATTRIBUTE_STORES, ATTRIBUTE_LOADS) if is_attribute else (STORES, LOADS)
        accesses: list[tuple[Access, ...]] = []
        for number, instruction in enumerate(self.instructions):
            is_end = number == start or (start is None and instruction.opname in (*_ENDS, "YIELD_VALUE"))
            if instruction.argval == name and instruction.opname in stores:
                accesses.append((("store", name),))
            elif is_end or (instruction.argval == name and instruction.opname in loads and not is_method(instruction)):
                accesses.append((("load", name),))
            else:
                accesses.append(())
        live = self._live(accesses, start)
        following = [(0, False)] if start is None else list(self._following(start, again=True, around=start))
        return name not in live.at(following)

    def nested_in_loops(self, index: int) -> list[Nested]:
        """The functions that each pass of a loop around an instruction makes anew."""
        loops = self._loops_around(index)
        return [nested for nested in self._nested if any(first <= nested.made_at <= last for first, last in loops)]

    def _accesses_with(self, read_by_calls: Iterable[str], index: int) -> list[tuple[Access, ...]]:
        anew = self.nested_in_loops(index)
        shared = [] if self._is_module else [nested.reads for nested in self._nested if nested not in anew]
        by_calls = tuple(("load", name) for name in frozenset(read_by_calls).union(*shared))
        accesses = [
            (*by_calls, *own) if by_calls and instruction.opname.startswith(_CALLS) else own
            for instruction, own in zip(self.instructions, self._accesses, strict=True)
        ]
        by_name = {nested.name: nested.reads for nested in anew if nested.name is not None}
        for nested in anew:
            reads = tuple(("load", name) for name in sorted(_with_reads_of(nested.reads, by_name)))
            places = [number for number, own in enumerate(self._accesses) if ("load", nested.name) in own]
            for number in places if nested.name is not None else [nested.made_at]:
                accesses[number] = (*reads, *accesses[number])
        return accesses

    def _live_around(self, index: int, read_by_calls: frozenset[str]) -> "_Live":
        """What may be read in the loops around an instruction. Several questions follow one another about the same."""
        if self._last_live is None or self._last_live[:2] != (index, read_by_calls):
            self._last_live = index, read_by_calls, self._live(self._accesses_with(read_by_calls, index), index)
        return self._last_live[2]

    def _live(self, accesses: list[tuple[Access, ...]], around: int | None) -> "_Live":
        """What may be read from each node on before it is assigned: the usual equations, solved from the end.

        `around`: an instruction; the `for` loops around it may have no pass at all.
        """
        names = sorted({name for access in accesses for _, name in access})
        bits = {name: 1 << number for number, name in enumerate(names)}
        uses, kills = [0] * len(accesses), [0] * len(accesses)
        for number, access in enumerate(accesses):
            for kind, name in access:
                if kind == "load":
                    uses[number] |= bits[name] & ~kills[number]
                else:
                    kills[number] |= bits[name]
        nodes = [(number, again) for number in range(len(accesses) - 1, -1, -1) for again in (False, True)]
        following = {node: tuple(self._following(*node, around)) for node in nodes}
        live = dict.fromkeys(nodes, 0)
        changed = True
        while changed:
            changed = False
            for node in nodes:
                behind = 0
                for later in following[node]:
                    behind |= live[later]
                now = uses[node[0]] | (behind & ~kills[node[0]])
                if now != live[node]:
                    live[node] = now
                    changed = True
        return _Live(bits, live)

    def _following(self, number: int, again: bool, around: int | None) -> Iterator[_Node]:
        instruction = self.instructions[number]
        target = self._target_of(number)
        if (
            instruction.opname not in _ENDS
            and not instruction.opname.startswith(_ALWAYS_JUMPS)
            and number + 1 < len(self._accesses)
        ):
            yield number + 1, False
        if target is None:
            return
        if instruction.opname != "FOR_ITER" or again or (around is not None and number < around < target):
            yield target, target <= number

    def _target_of(self, number: int) -> int | None:
        instruction = self.instructions[number]
        return self._index.get(instruction.argval) if instruction.opcode in _JUMPS else None

    @property
    def _is_module(self) -> bool:
        return self.code.co_name == "<module>"

    @functools.cached_property
    def _nested(self) -> list[Nested]:
        """The functions that this code makes. They may be called at any time; comprehensions run where they stand."""
        found = []
        for number, instruction in enumerate(self.instructions):
            code = instruction.argval
            is_code = instruction.opname == "LOAD_CONST" and isinstance(code, types.CodeType)
            if is_code and code.co_name not in _COMPREHENSIONS:
                found.append(Nested(code, number, self._name_bound_behind(number), self._reads_of(code)))
        return found

    def _reads_of(self, code: types.CodeType) -> frozenset[str]:
        if self._is_module:
            return global_names(code)
        return frozenset(code.co_freevars).intersection(self.code.co_cellvars)

    def _name_bound_behind(self, number: int) -> str | None:
        """The name of the function that is made there, also behind its decorators."""
        for later in self.instructions[number + 1 :]:
            if later.opname in STORES:
                return str(later.argval)
            if later.opname not in _MAKES:
                return None
        return None

    @functools.cached_property
    def _loops(self) -> list[tuple[int, int]]:
        """First and last instruction of each loop, outermost first: the target of a jump backwards, and that jump."""
        ends: dict[int, int] = {}
        for number in range(len(self.instructions)):
            target = self._target_of(number)
            if target is not None and target <= number:
                ends[target] = max(number, ends.get(target, 0))
        return sorted(ends.items(), key=lambda loop: (loop[0], -loop[1]))

    def _loops_around(self, index: int) -> list[tuple[int, int]]:
        return [(first, last) for first, last in self._loops if first <= index <= last]

    def _stores_in(self, first: int, last: int) -> dict[str, Stored]:
        stores: dict[str, Stored] = {}
        for number in range(first, last + 1):
            for kind, name in self._accesses[number]:
                if kind == "store":
                    stores.setdefault(name, Stored(name, self.line_of(number)))
        return stores

    def _beginning_of_pass(self, first: int, last: int) -> int:
        """Where a pass of a loop begins: behind the head of a `for` loop, at the test of a `while` loop.

        Python 3.11 writes a `while` loop's test twice: before the loop, where its first pass begins, and at its end.
        """
        if self.instructions[first].opname == "FOR_ITER":
            return first + 1
        target = self._target_of(first - 1) if first else None
        if target is None or target <= last:
            return first
        line, start = self.line_of(first - 1), first - 1
        while start and self.line_of(start - 1) == line:
            start -= 1
        return start


def _with_reads_of(names: frozenset[str], functions: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Names, and what the functions among them read."""
    read, waiting = set(names), list(names)
    while waiting:
        new = functions.get(waiting.pop(), frozenset()) - read
        read |= new
        waiting += new
    return frozenset(read)


@dataclass(frozen=True, slots=True)
class _Live:
    """The names that may be read at each node before they are assigned, as bits of a number."""

    bits: Mapping[str, int]
    live: Mapping[_Node, int]

    def at(self, nodes: Iterable[_Node]) -> frozenset[str]:
        """The names at any of these nodes."""
        mask = 0
        for node in nodes:
            mask |= self.live[node]
        return frozenset(name for name, bit in self.bits.items() if mask & bit)


_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
