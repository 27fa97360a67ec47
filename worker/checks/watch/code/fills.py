"""Does each step fill an array whole before anything reads it? `rewards[t] = reward` for all t, then `rewards.mean()`.

Such a buffer is made once and filled anew in each iteration, as that of PPO, so what it held is no state. Its elements
have no names that bytecode would store, so the source is followed: from the beginning of a pass of the innermost loop
around the step, through the script's functions that are called on the way, as far as their names lead to an object.
What is not understood counts as reading the array. Imports no framework.
"""

import ast
import types
from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from worker.checks import loop_source
from worker.checks.loop_lines import RANGES, name_of_call
from worker.checks.reachability import closure_of, is_installed_file
from worker.checks.watch.code.loop_frames import LoopFrame
from worker.checks.watch.code.loop_heads import value_named
from worker.checks.watch.script_objects import is_scripts_class

_DEPTH = 4  # of calls
_FILLING = frozenset({"fill", "fill_", "zero_", "copy_"})
"""Methods that set every element of an array or a tensor."""


class _Use(Enum):
    """What code does with the array first."""

    NONE = "none"
    FILLS = "fills"
    READS = "reads"


def is_filled_first(array: Any, name: str, frames: Sequence[LoopFrame], codes: Collection[types.CodeType]) -> bool:
    """Whether each pass of the innermost loop around the step in `frames` sets all elements of an array or a list
    before it reads one, and the loops around that one do not read it. `name`: which is bound to it. `codes`: of the
    script's functions."""
    own = {frame.frame.f_code for frame in frames}
    others = {code.co_name for code in codes if code not in own and name in (*code.co_names, *code.co_freevars)}
    is_inner = True
    for frame in frames:
        function, line = loop_source.function_of(frame.frame.f_code), frame.frame.f_lineno
        if function is None:
            return False
        reader = _SourceReader(array, frame.values, others)
        loops = [loop for loop in loop_source.loops_around(function, line) if loop.lineno > (frame.begins_at or 0)]
        for loop in reversed(loops):
            if is_inner and reader.first_use(loop.body) is not _Use.FILLS:
                return False
            if not is_inner and any(reader.first_use(part) is _Use.READS for part in _beside(loop.body, line)):
                return False
            is_inner = False
    return not is_inner


def _beside(body: Sequence[ast.stmt], line: int) -> Iterator[Sequence[ast.stmt]]:
    """The statements of a block that stand before and behind the one with a line."""
    yield [statement for statement in body if (statement.end_lineno or 0) < line]
    yield [statement for statement in body if statement.lineno > line]


class _SourceReader:
    """Reads the source of one function. `names`: what its names are now; `others`: the names of the script's functions
    that may read the array; `number`: the variable of a loop by which an element has been set."""

    def __init__(
        self,
        array: Any,
        names: Mapping[str, Any],
        others: Collection[str],
        depth: int = _DEPTH,
        number: str | None = None,
    ) -> None:
        self._array = array
        self._names = names
        self._others = others
        self._depth = depth
        self._number = number
        self._length = len(array) if len(getattr(array, "shape", (0,))) > 0 else None

    def first_use(self, body: Sequence[ast.stmt]) -> _Use:
        """What a block does first with the array."""
        return next((use for statement in body if (use := self._use_by(statement)) is not _Use.NONE), _Use.NONE)

    def _use_by(self, statement: ast.stmt) -> _Use:
        match statement:
            case ast.With() | ast.AsyncWith():
                return self._first(self._use_in(*statement.items), statement.body)
            case ast.For() | ast.AsyncFor():
                if self._fills_by_number(statement):  # its `range(len(rewards))` reads no element
                    return _Use.FILLS
                return self._first(self._use_in(statement.iter), statement.body)
            case ast.While():
                return self._in_some(self._use_in(statement.test), statement.body)
            case ast.If():
                return self._in_some(self._use_in(statement.test), statement.body, statement.orelse)
            case ast.Assign(targets=[target], value=value):
                before = self._use_in(value)
                if before is _Use.NONE and self._is_whole(target):
                    return _Use.FILLS
                return before if before is not _Use.NONE else self._use_in(target)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=held, attr=method), args=arguments)) if (
                method in _FILLING and self._is_it(held)
            ):
                return _Use.FILLS if self._use_in(*arguments) is _Use.NONE else _Use.READS
        return self._use_in(statement)

    def _first(self, before: _Use, body: Sequence[ast.stmt]) -> _Use:
        return before if before is not _Use.NONE else self.first_use(body)

    def _in_some(self, before: _Use, *blocks: Sequence[ast.stmt]) -> _Use:
        """What code does of which one of some blocks runs, or none if there is one only."""
        uses = {self.first_use(block) for block in blocks}
        if before is not _Use.NONE or _Use.READS in uses:
            return _Use.READS
        return _Use.FILLS if uses == {_Use.FILLS} and len(blocks) > 1 else _Use.NONE

    def _use_in(self, *nodes: ast.AST) -> _Use:
        """What expressions do, or statements without a block."""
        for node in nodes:
            if (use := self._use_of(node)) is not _Use.NONE:
                return use
        return _Use.NONE

    def _use_of(self, node: ast.AST) -> _Use:
        if self._is_it(node):
            return _Use.READS
        match node:
            case ast.AugAssign():
                return self._use_in(*_loaded(node.target), node.value)
            case ast.Subscript(value=value, slice=index, ctx=context) if self._is_it(value):
                is_own = self._number is not None and _is_number(index, self._number)
                return self._use_in(index) if isinstance(context, ast.Store) or is_own else _Use.READS
            case ast.Call():
                inside = self._use_in(*ast.iter_child_nodes(node))
                return inside if inside is not _Use.NONE else self._use_by_call(node)
        return self._use_in(*ast.iter_child_nodes(node))

    def _use_by_call(self, call: ast.Call) -> _Use:
        """What the function does that is called, of which the arguments are known to do nothing."""
        held: Any = value_named(call.func.value, self._names) if isinstance(call.func, ast.Attribute) else None
        called: Any = value_named(call.func, self._names)
        if isinstance(called, types.MethodType):
            held, called = called.__self__, called.__func__
        if isinstance(called, types.FunctionType) and not is_installed_file(called.__code__.co_filename):
            function = loop_source.function_of(called.__code__)
            if function is not None and self._depth > 0:
                given = _arguments(call, called, held, self._names)
                names = ChainMap(given, dict(closure_of(called)), called.__globals__)
                return _SourceReader(self._array, names, self._others, self._depth - 1).first_use(function.body)
        may_read = self._calls_own_code(called) or name_of_call(call) in self._others
        return _Use.READS if self._others and may_read else _Use.NONE

    def _calls_own_code(self, called: Any) -> bool:
        """Whether an object or a class is called, so that methods of the script may run whose names do not stand
        there."""
        if isinstance(called, type):
            return is_scripts_class(called) and "__init__" in self._others
        of_class = (vars(kind).get("__call__") for kind in type(called).__mro__)
        return isinstance(next(filter(None, of_class), None), types.FunctionType)

    def _fills_by_number(self, loop: ast.For | ast.AsyncFor) -> bool:
        """Whether a loop runs over the numbers of all the elements, and each pass sets its own before it reads it, and
        reads no other."""
        if not isinstance(loop.target, ast.Name) or _leaves_a_pass(loop.body):
            return False
        if self._length_of(loop.iter) != self._length:
            return False
        number, body = loop.target.id, list(_in_each_pass(loop.body))
        for place, statement in enumerate(body):
            match statement:
                case ast.Assign(targets=targets, value=value) if any(self._sets(part, number) for part in targets):
                    later = _SourceReader(self._array, self._names, self._others, self._depth, number)
                    return self._use_in(value) is _Use.NONE and later.first_use(body[place + 1 :]) is _Use.NONE
            if self._use_by(statement) is not _Use.NONE:
                return False
        return False

    def _sets(self, target: ast.expr, number: str) -> bool:
        """Whether an assignment sets the element under the variable of a loop, with others or alone."""
        parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        return any(
            isinstance(part, ast.Subscript) and self._is_it(part.value) and _is_number(part.slice, number)
            for part in parts
        )

    def _is_whole(self, target: ast.expr) -> bool:
        """Whether an assignment sets every element, as of `obs[:]`, `obs[...]`."""
        return isinstance(target, ast.Subscript) and self._is_it(target.value) and _is_all(target.slice)

    def _is_it(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name | ast.Attribute) and value_named(node, self._names) is self._array

    def _length_of(self, iterated: ast.expr) -> int | None:
        """How many numbers from 0 on, in either order, a loop runs over; None if that is not known."""
        match iterated:
            case ast.Call(func=ast.Name(id="reversed"), args=[inner]):
                return self._length_of(inner)
            case ast.Call(args=[end] | [ast.Constant(value=0), end]) if name_of_call(iterated) in RANGES:
                return self._number_of(end)
        return None

    def _number_of(self, node: ast.expr) -> int | None:
        value: Any = None
        match node:
            case ast.Constant(value=value):
                pass
            case ast.Name() | ast.Attribute():
                value = value_named(node, self._names)
            case ast.Call(func=ast.Name(id="len"), args=[held]) if self._is_it(held):
                value = self._length
            case ast.Subscript(value=ast.Attribute(value=held, attr="shape"), slice=ast.Constant(value=0)) if (
                self._is_it(held)
            ):
                value = self._length
        return value if type(value) is int else None


def _loaded(target: ast.expr) -> Iterator[ast.AST]:
    """What `target += value` reads: the holder of an entry whole."""
    yield from [target.value, target.slice] if isinstance(target, ast.Subscript) else [target]


def _is_number(index: ast.expr, number: str) -> bool:
    """Whether an index is a variable, and all of what is under it: `obs[t]`, `obs[t, :]`."""
    first, *rest = index.elts if isinstance(index, ast.Tuple) and index.elts else [index]
    return isinstance(first, ast.Name) and first.id == number and all(map(_is_all, rest))


def _is_all(index: ast.expr) -> bool:
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return all(
        (isinstance(part, ast.Slice) and part.lower is part.upper is part.step is None)
        or (isinstance(part, ast.Constant) and part.value is ...)
        for part in parts
    )


def _in_each_pass(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a loop's body, those of `with` blocks among them."""
    for statement in body:
        if isinstance(statement, ast.With):
            yield from (ast.Expr(item.context_expr) for item in statement.items)
            yield from _in_each_pass(statement.body)
        else:
            yield statement


def _leaves_a_pass(body: Sequence[ast.stmt]) -> bool:
    """Whether a loop's own body may leave out a pass, or a part of one."""
    for statement in body:
        if isinstance(statement, ast.Break | ast.Continue | ast.Return):
            return True
        is_loop = isinstance(statement, loop_source.Loop)
        blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        if is_loop:
            if any(isinstance(part, ast.Return) for part in ast.walk(statement)):
                return True
        elif any(map(_leaves_a_pass, blocks)):
            return True
    return False


def _arguments(call: ast.Call, function: types.FunctionType, held: Any, names: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a function that is called, as far as the call says what they are; None for the others."""
    code = function.__code__
    parameters = list(code.co_varnames[: code.co_argcount])
    given: dict[str, Any] = dict.fromkeys(code.co_varnames)
    if held is not None and not isinstance(held, types.ModuleType) and parameters:
        given[parameters.pop(0)] = held
    for name, argument in zip(parameters, call.args, strict=False):
        given[name] = value_named(argument, names)
    given |= {word.arg: value_named(word.value, names) for word in call.keywords if word.arg in given}
    return given
