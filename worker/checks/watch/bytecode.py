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
  that functions look up, and variables that nested functions share.

`stats["loss"]` with a constant is followed like a name, and called `stats['loss']`.
"""

import dis
import functools
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

_LOADS = frozenset(
    ["LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_FAST_AND_CLEAR", "LOAD_NAME", "LOAD_GLOBAL",
     "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF", "LOAD_FROM_DICT_OR_GLOBALS", "LOAD_CLOSURE"]
)  # fmt: skip
_STORES = frozenset(["STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF", "DELETE_FAST", "DELETE_NAME",
                     "DELETE_GLOBAL", "DELETE_DEREF"])  # fmt: skip
_PAIRS = {
    "LOAD_FAST_LOAD_FAST": ("load", "load"),
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": ("load", "load"),
    "STORE_FAST_LOAD_FAST": ("store", "load"),
    "STORE_FAST_STORE_FAST": ("store", "store"),
}
"""Instructions of later Pythons that access two names."""
_ENDS = frozenset(["RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "INTERPRETER_EXIT"])
_ATTRIBUTE_LOADS = frozenset(["LOAD_ATTR", "DELETE_ATTR"])  # not LOAD_METHOD: what is called is no value that changes
_ATTRIBUTE_STORES = frozenset(["STORE_ATTR"])
_COMPREHENSIONS = frozenset(["<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"])
_ALWAYS_JUMPS = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE")
_CALLS = ("CALL", "PRECALL")

Access = tuple[str, str]
"""`load` or `store`, and the name."""


_Node = tuple[int, bool]
"""An instruction, and whether a jump backwards led to it."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a name is assigned. `line`: of its source, None if it is not known."""

    name: str
    line: int | None


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
        entries = _constant_entries(self.instructions)
        self._accesses = [
            tuple(_accesses(self.instructions, number, entries)) for number in range(len(self.instructions))
        ]

    def index_at(self, offset: int) -> int:
        """The instruction at a frame's `f_lasti`, which may stand on what belongs to the instruction."""
        return max((number for start, number in self._index.items() if start <= offset), default=0)

    def line_of(self, index: int) -> int | None:
        """The line of the source that an instruction comes from."""
        positions = self.instructions[index].positions
        return None if positions is None else positions.lineno

    def names_read(self, index: int, read_by_calls: Iterable[str] = ()) -> frozenset[str]:
        """The names that may be read behind an instruction before they are assigned."""
        live = self._live(self._accesses_with(read_by_calls), index)
        return live.at(self._following(index, again=True, around=index))

    def carried(self, index: int, read_by_calls: Iterable[str] = ()) -> dict[str, Stored]:
        """The names that a loop around an instruction carries from pass to pass, with a place where it assigns them.

        Each loop for itself: its body assigns the name and may read it before. What the body of an outer loop makes
        anew before its inner loop is not carried, although it is the same at all steps of the inner one.
        """
        live = self._live(self._accesses_with(read_by_calls), index)
        found: dict[str, Stored] = {}
        for first, last in self._loops_around(index):
            read = live.at([(self._beginning_of_pass(first, last), False)])
            for name, stored in self._stores_in(first, last).items():
                if name in read:
                    found.setdefault(name, stored)
        return found

    def made_in_loops(self, index: int) -> frozenset[str]:
        """The names that the loops around an instruction assign."""
        return frozenset(name for first, last in self._loops_around(index) for name in self._stores_in(first, last))

    def attribute_targets(self, index: int) -> frozenset[str]:
        """The attributes that are targets of the `for` loops around an instruction: `for self.epoch in ...`."""
        found = set()
        for first, _ in self._loops_around(index):
            number = first + 1
            while self.instructions[number].opname.startswith(("UNPACK", "LOAD_", "STORE_")):
                if self.instructions[number].opname in _ATTRIBUTE_STORES:
                    found.add(str(self.instructions[number].argval))
                number += 1
        return frozenset(found)

    def assigns_first(self, name: str, *, is_attribute: bool, start: int | None = None) -> bool:
        """Whether every way from the function's beginning to its end assigns an attribute (of any object) or a name of
        the module before it reads one of this name. `start`: an instruction in a loop, instead: every way behind it and
        back to it."""
        stores, loads = (_ATTRIBUTE_STORES, _ATTRIBUTE_LOADS) if is_attribute else (_STORES, _LOADS)
        accesses: list[tuple[Access, ...]] = []
        for number, each in enumerate(self.instructions):
            is_end = number == start or (start is None and each.opname in (*_ENDS, "YIELD_VALUE"))
            if each.argval == name and each.opname in stores:
                accesses.append((("store", name),))
            elif is_end or (each.argval == name and each.opname in loads and not _is_method(each)):
                accesses.append((("load", name),))
            else:
                accesses.append(())
        live = self._live(accesses, start)
        following = [(0, False)] if start is None else list(self._following(start, again=True, around=start))
        return name not in live.at(following)

    def _accesses_with(self, read_by_calls: Iterable[str]) -> list[tuple[Access, ...]]:
        by_calls = tuple(("load", name) for name in self._shared.union(read_by_calls))
        return [
            (*by_calls, *own) if by_calls and instruction.opname.startswith(_CALLS) else own
            for instruction, own in zip(self.instructions, self._accesses, strict=True)
        ]

    def _live(self, accesses: list[tuple[Access, ...]], around: int | None) -> "_Live":
        """What may be read from each node on before it is assigned: the usual equations, solved from the end.

        `around`: an instruction; the `for` loops around it may have no pass at all.
        """
        names = sorted({name for each in accesses for _, name in each})
        bits = {name: 1 << number for number, name in enumerate(names)}
        uses, kills = [0] * len(accesses), [0] * len(accesses)
        for number, each in enumerate(accesses):
            for kind, name in each:
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
        each = self.instructions[number]
        target = self._target_of(number)
        if each.opname not in _ENDS and not each.opname.startswith(_ALWAYS_JUMPS) and number + 1 < len(self._accesses):
            yield number + 1, False
        if target is None:
            return
        if each.opname != "FOR_ITER" or again or (around is not None and number < around < target):
            yield target, target <= number

    def _target_of(self, number: int) -> int | None:
        each = self.instructions[number]
        return self._index.get(each.argval) if each.opcode in _JUMPS else None

    @functools.cached_property
    def _shared(self) -> frozenset[str]:
        """The variables that nested functions share, which may be called at any time; comprehensions run where they
        stand."""
        nested = [each for each in self.code.co_consts if isinstance(each, types.CodeType)]
        return frozenset(
            name for each in nested if each.co_name not in _COMPREHENSIONS for name in each.co_freevars
        ).intersection(self.code.co_cellvars)

    @functools.cached_property
    def _loops(self) -> list[tuple[int, int]]:
        """First and last instruction of each loop, outermost first: the target of a jump backwards, and that jump."""
        ends: dict[int, int] = {}
        for number in range(len(self.instructions)):
            target = self._target_of(number)
            if target is not None and target <= number:
                ends[target] = max(number, ends.get(target, 0))
        return sorted(ends.items(), key=lambda each: (each[0], -each[1]))

    def _loops_around(self, index: int) -> list[tuple[int, int]]:
        return [(first, last) for first, last in self._loops if first <= index <= last]

    def _stores_in(self, first: int, last: int) -> dict[str, Stored]:
        found: dict[str, Stored] = {}
        for number in range(first, last + 1):
            for kind, name in self._accesses[number]:
                if kind == "store":
                    found.setdefault(name, Stored(name, self.line_of(number)))
        return found

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


@dataclass(frozen=True, slots=True)
class _Live:
    """The names that may be read at each node before they are assigned, as bits of a number."""

    bits: Mapping[str, int]
    live: Mapping[_Node, int]

    def at(self, nodes: Iterable[_Node]) -> frozenset[str]:
        """The names at any of these nodes."""
        found = 0
        for node in nodes:
            found |= self.live[node]
        return frozenset(name for name, bit in self.bits.items() if found & bit)


_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))


def _accesses(
    instructions: list[dis.Instruction], number: int, entries: Mapping[str, frozenset[str]]
) -> Iterator[Access]:
    each = instructions[number]
    if each.opname in _LOADS:
        yield "load", str(each.argval)
        yield from _entry_accesses(instructions, number, str(each.argval), entries)
    elif each.opname in _STORES:
        yield "store", str(each.argval)
        yield from (("store", entry) for entry in entries.get(str(each.argval), ()))
    elif each.opname in _PAIRS:
        for kind, name in zip(_PAIRS[each.opname], each.argval, strict=True):
            yield kind, name
            yield from ((kind, entry) for entry in entries.get(name, ()))


def _entry_accesses(
    instructions: list[dis.Instruction], number: int, name: str, entries: Mapping[str, frozenset[str]]
) -> Iterator[Access]:
    """What loading a name does to its entries under constants: an assignment, the reading of one, or of all."""
    if name not in entries:
        return
    kind, entry = _constant_entry(instructions, number) or ("load", None)
    if entry is not None:
        yield kind, entry
    else:
        yield from (("load", each) for each in entries[name])


def _constant_entries(instructions: list[dis.Instruction]) -> dict[str, frozenset[str]]:
    """By name, the entries under constants that the code assigns, as `stats['loss']`."""
    found: dict[str, set[str]] = {}
    for number, each in enumerate(instructions):
        if each.opname in _LOADS:
            kind, entry = _constant_entry(instructions, number) or ("", "")
            if kind == "store":
                found.setdefault(str(each.argval), set()).add(entry)
    return {name: frozenset(each) for name, each in found.items()}


def _constant_entry(instructions: list[dis.Instruction], number: int) -> Access | None:
    """What `name["constant"]` does, if the name at this instruction stands in such an expression."""
    following = instructions[number + 1 : number + 3]
    if len(following) < 2 or following[0].opname != "LOAD_CONST":
        return None
    entry = f"{instructions[number].argval}[{following[0].argval!r}]"
    match following[1].opname:
        case "STORE_SUBSCR":
            return "store", entry
        case "BINARY_SUBSCR" | "COPY":
            return "load", entry
    return None


def _reads_attribute(instruction: dis.Instruction) -> bool:
    return instruction.opname in _ATTRIBUTE_LOADS and not _is_method(instruction)


def _is_method(instruction: dis.Instruction) -> bool:
    """Whether an attribute is looked up to be called, as Python 3.12 and later write it."""
    return instruction.opname == "LOAD_ATTR" and sys.version_info >= (3, 12) and bool((instruction.arg or 0) & 1)


@functools.lru_cache(maxsize=1024)
def stored_names(code: types.CodeType) -> Mapping[str, int | None]:
    """The attributes, of any object, and the names of the module that a function assigns, with a line that does it.

    Also those of functions inside it.
    """
    found: dict[str, int | None] = {}
    for each in dis.get_instructions(code):
        if each.opname in ("STORE_ATTR", "STORE_GLOBAL"):
            found.setdefault(each.argval, each.positions.lineno if each.positions is not None else None)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found = {**stored_names(constant), **found}
    return found


@functools.lru_cache(maxsize=1024)
def accesses_by_offset(code: types.CodeType) -> Mapping[int, tuple[str, str, bool]]:
    """By offset, what instructions do with attributes and names of the module: `load` or `store`, the name, and whether
    it is an attribute."""
    found: dict[int, tuple[str, str, bool]] = {}
    for each in dis.get_instructions(code):
        if each.opname in _ATTRIBUTE_STORES or _reads_attribute(each):
            found[each.offset] = ("store" if each.opname in _ATTRIBUTE_STORES else "load", str(each.argval), True)
        elif each.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "STORE_NAME"):
            found[each.offset] = ("store" if each.opname.startswith("STORE") else "load", str(each.argval), False)
    return found
