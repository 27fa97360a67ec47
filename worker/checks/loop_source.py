"""Finds the script's own loops in its source: which ones stand around the line that calls into a run.

The source is read with `ast`, not the bytecode with `dis`, because bytecode has other instructions in each version of
Python, and because the message has to quote the line. A frame without source (`python -c`, some shells) has no loops.
Imports no framework.
"""

import ast
import functools
import linecache
import os
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.checks.reachability import is_installed_file

_PACKAGES = tuple(str(Path(__file__).parents[2] / name) + os.sep for name in ("worker", "supervisor"))

Loop = ast.For | ast.AsyncFor | ast.While
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module


@dataclass(frozen=True, slots=True)
class Entered:
    """Where a script entered its run: the code of that frame, and the line of its `with`."""

    code: types.CodeType
    line: int


@dataclass(frozen=True, slots=True)
class RunFrame:
    """A frame between a call of the run and the `with` of it."""

    frame: types.FrameType

    def value_of(self, name: str) -> Any:
        """What a name, or its entry under a constant (`stats['loss']`), is in this frame. Raises LookupError or
        TypeError."""
        base, _, entry = name.partition("[")
        frame = self.frame
        value = frame.f_locals[base] if base in frame.f_locals else frame.f_globals[base]
        return value[ast.literal_eval(entry[:-1])] if entry else value

    def place(self, line: int | None) -> str:
        """A line of the frame's code, as file:line; None: the one where it stands."""
        return f"{Path(self.frame.f_code.co_filename).name}:{line or self.frame.f_lineno}"

    @property
    def is_library(self) -> bool:
        """Whether it is a function of an installed package, whose loops nobody writes and which has no `run.state`."""
        return is_installed_file(self.frame.f_code.co_filename)


@dataclass(frozen=True, slots=True)
class ScriptFrame(RunFrame):
    """A frame of the script, its function, and the loops inside of the `with` around its line, outermost first."""

    function: Function
    loops: tuple[Loop, ...]

    def is_local(self, name: str) -> bool:
        """Whether a name belongs to this frame alone."""
        code = self.frame.f_code
        return name in code.co_varnames or name in code.co_cellvars

    def is_parameter(self, name: str) -> bool:
        """Whether whoever calls the function says what a name is."""
        return name in self.frame.f_code.co_varnames[: self.frame.f_code.co_argcount]


def script_frame_of(frame: types.FrameType | None) -> types.FrameType | None:
    """The innermost frame, from `frame` outwards, that is not of this package or of `contextlib`."""
    while frame is not None and (
        frame.f_code.co_filename.startswith(_PACKAGES) or frame.f_globals.get("__name__") == "contextlib"
    ):
        frame = frame.f_back
    return frame


def frames_of_run(frame: types.FrameType | None, entered: Entered | None) -> list[types.FrameType]:
    """The frames from `frame` out to the one that entered the run, innermost first."""
    chain: list[types.FrameType] = []
    outer = script_frame_of(frame)
    while outer is not None:
        chain.append(outer)
        if entered is not None and outer.f_code is entered.code:
            return chain
        outer = outer.f_back
    # the run was entered elsewhere, as by a function that gives it; loops further out may be around that
    return chain[:1]


def script_frames(frame: types.FrameType | None, entered: Entered | None) -> list[ScriptFrame]:
    """The frames from `frame` out to the one that entered the run, as far as their source is there, innermost first."""
    frames = []
    for number, current in enumerate(frames_of_run(frame, entered)):
        function = function_of(current.f_code)
        if function is None:
            continue
        after = entered.line if entered is not None and current.f_code is entered.code else 0
        loops = tuple(loop for loop in loops_around(function, current.f_lineno) if loop.lineno > after)
        if loops or number == 0:
            frames.append(ScriptFrame(current, function, loops))
    return frames


@functools.lru_cache(maxsize=16)
def module_at(file: str) -> ast.Module | None:
    """The module of a file; None without source."""
    lines = linecache.getlines(file)
    try:
        return ast.parse("".join(lines)) if lines else None
    except (SyntaxError, ValueError):
        return None


def module_of(frame: types.FrameType) -> ast.Module | None:
    """The module of a frame; None without source."""
    return module_at(frame.f_code.co_filename)


def function_of(code: types.CodeType) -> Function | None:
    """The source of a function; None if there is none."""
    tree = module_at(code.co_filename)
    if tree is None or code.co_name == "<module>":
        return tree
    return _functions(code.co_filename).get((code.co_name, code.co_firstlineno))


def generator_expression_of(code: types.CodeType) -> ast.GeneratorExp | None:
    """The source of a generator expression, or of the outermost one in its line; None if there is none."""
    tree = module_at(code.co_filename) if code.co_name == "<genexpr>" else None
    nodes = [
        node
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, ast.GeneratorExp) and node.lineno == code.co_firstlineno
    ]
    return min(nodes, key=lambda node: node.col_offset, default=None)


@functools.lru_cache(maxsize=16)
def _functions(filename: str) -> dict[tuple[str, int], Function]:
    """All functions of a file, by name and first line, which is that of the first decorator."""
    tree = module_at(filename)
    functions: dict[tuple[str, int], Function] = {}
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min(part.lineno for part in (node, *node.decorator_list))
            functions.setdefault((node.name, first), node)
    return functions


def loops_around(function: Function, line: int) -> Iterator[Loop]:
    """The loops around a line of a function, outermost first."""
    for statement in statements(function.body):
        if isinstance(statement, Loop) and statement.body[0].lineno <= line <= (statement.end_lineno or line):
            yield statement


def statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a block, those inside them after each, without those of nested functions and classes."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for name in ("body", "orelse", "finalbody"):
            yield from statements(getattr(statement, name, []))
        for handler in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            yield from statements(handler.body)


def names_in_loops(frame: ScriptFrame) -> set[str] | None:
    """The names that the loops around a line use; None if there is no loop.

    What else the function uses runs before the loops, in each process anew, or after them.
    """
    if not frame.loops:
        return None
    return {node.id for node in ast.walk(frame.loops[0]) if isinstance(node, ast.Name)}


def assigned_values(function: Function | Loop, name: str) -> list[ast.expr]:
    """All expressions that a function, or a loop, assigns to a name; of one that stands in a tuple, its own entry, or
    all that is taken apart."""
    return [found for target, value in _assignments(function) for found in _values_of_name(target, value, name)]


@functools.lru_cache(maxsize=256)
def _assignments(function: Function | Loop) -> tuple[tuple[ast.expr, ast.expr], ...]:
    """Each target that a function, or a loop, assigns a value to, and the value."""
    return tuple(
        (target, statement.value)
        for statement in statements(function.body)
        if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign) and statement.value is not None
        for target in (statement.targets if isinstance(statement, ast.Assign) else [statement.target])
    )


def _values_of_name(target: ast.expr, value: ast.expr, name: str) -> Iterator[ast.expr]:
    if isinstance(target, ast.Name) and target.id == name:
        yield value
    elif isinstance(target, ast.Tuple | ast.List):
        parts = value.elts if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts) else ()
        for number, part in enumerate(target.elts):
            yield from _values_of_name(part, parts[number] if parts else value, name)
