"""Which instructions of a function may follow which, where its loops are, and which names are live at an instruction:
may be read from there on before they are assigned.

A node is an instruction and whether it was reached by a jump backwards, which matters at the head of a `for` loop: only
then may the loop end.
"""

import dis
import functools
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from worker.checks.watch.code.instructions import Access

ENDS = frozenset(["RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "INTERPRETER_EXIT"])
_ALWAYS_JUMPS = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE")
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))

Node = tuple[int, bool]
"""An instruction, and whether a jump backwards led to it."""
Loop = tuple[int, int]
"""First and last instruction of a loop: the target of a jump backwards, and that jump."""


@dataclass(frozen=True, slots=True)
class LiveNames:
    """The names that may be read at each node before they are assigned, as bits of a number."""

    bits: Mapping[str, int]
    live: Mapping[Node, int]

    def at(self, nodes: Iterable[Node]) -> frozenset[str]:
        """The names at any of these nodes."""
        mask = 0
        for node in nodes:
            mask |= self.live[node]
        return frozenset(name for name, bit in self.bits.items() if mask & bit)


class ControlFlow:
    """Of one code object."""

    def __init__(self, code: types.CodeType) -> None:
        self.instructions: list[dis.Instruction] = []
        self._followed: dict[int | None, Mapping[Node, tuple[Node, ...]]] = {}
        self._index: dict[int, int] = {}  # by offset; a jump may lead to the prefix of an instruction
        for instruction in dis.get_instructions(code):
            self._index[instruction.offset] = len(self.instructions)
            if instruction.opname != "EXTENDED_ARG":
                self.instructions.append(instruction)

    def index_at(self, offset: int) -> int:
        """The instruction at a frame's `f_lasti`, which may stand on what belongs to the instruction."""
        return max((number for start, number in self._index.items() if start <= offset), default=0)

    def line_of(self, index: int) -> int | None:
        """The line of the source that an instruction comes from."""
        positions = self.instructions[index].positions
        return None if positions is None else positions.lineno

    def following(self, number: int, again: bool, around: int | None) -> Iterator[Node]:
        """The nodes that may follow a node. `around`: an instruction; the `for` loops around it may have no pass."""
        instruction = self.instructions[number]
        target = self._target_of(number)
        if (
            instruction.opname not in ENDS
            and not instruction.opname.startswith(_ALWAYS_JUMPS)
            and number + 1 < len(self.instructions)
        ):
            yield number + 1, False
        if target is None:
            return
        if instruction.opname != "FOR_ITER" or again or (around is not None and number < around < target):
            yield target, target <= number

    def live_names(self, accesses: Sequence[Sequence[Access]], around: int | None) -> LiveNames:
        """Where which names are live: the usual equations, solved from the end. `accesses`: of each instruction.
        `around`: as for `following`."""
        names = sorted({name for access in accesses for _, name in access})
        bits = {name: 1 << number for number, name in enumerate(names)}
        uses, kills = [0] * len(accesses), [0] * len(accesses)
        for number, access in enumerate(accesses):
            for kind, name in access:
                if kind == "load":
                    uses[number] |= bits[name] & ~kills[number]
                else:
                    kills[number] |= bits[name]
        following = self._all_following(around)
        live = dict.fromkeys(following, 0)
        changed = True
        while changed:
            changed = False
            for node, after in following.items():
                behind = 0
                for later in after:
                    behind |= live[later]
                now = uses[node[0]] | (behind & ~kills[node[0]])
                if now != live[node]:
                    live[node] = now
                    changed = True
        return LiveNames(bits, live)

    def _all_following(self, around: int | None) -> Mapping[Node, tuple[Node, ...]]:
        """The nodes that may follow each node, from the end to the beginning of the code."""
        if around not in self._followed:
            numbers = range(len(self.instructions) - 1, -1, -1)
            self._followed[around] = {
                (number, again): tuple(self.following(number, again, around))
                for number in numbers
                for again in (False, True)
            }
        return self._followed[around]

    def loops_around(self, index: int) -> list[Loop]:
        """Those around an instruction, outermost first."""
        return [(first, last) for first, last in self._loops if first <= index <= last]

    def beginning_of_pass(self, loop: Loop) -> Node:
        """Where a pass of a loop begins: behind the head of a `for` loop, at the test of a `while` loop.

        Python 3.11 writes a `while` loop's test twice: before the loop, where its first pass begins, and at its end.
        """
        first, last = loop
        if self.instructions[first].opname == "FOR_ITER":
            return first + 1, False
        target = self._target_of(first - 1) if first else None
        if target is None or target <= last:
            return first, False
        line, start = self.line_of(first - 1), first - 1
        while start and self.line_of(start - 1) == line:
            start -= 1
        return start, False

    def _target_of(self, number: int) -> int | None:
        instruction = self.instructions[number]
        return self._index.get(instruction.argval) if instruction.opcode in _JUMPS else None

    @functools.cached_property
    def _loops(self) -> list[Loop]:
        ends: dict[int, int] = {}
        for number in range(len(self.instructions)):
            target = self._target_of(number)
            if target is not None and target <= number:
                ends[target] = max(number, ends.get(target, 0))
        return sorted(ends.items(), key=lambda loop: (loop[0], -loop[1]))
