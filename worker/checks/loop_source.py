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

from worker.checks.findings import Finding

_PACKAGES = tuple(str(Path(__file__).parents[2] / name) + os.sep for name in ("worker", "supervisor"))
_RUN_ATTRIBUTES = frozenset({"epoch", "epochs", "step", "steps", "reached", "state", "batch", "batches"})
"""What a loop reads that goes on where the restored checkpoint stopped."""

Loop = ast.For | ast.AsyncFor | ast.While
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module


@dataclass(frozen=True, slots=True)
class Entered:
    """Where a script entered its run: the code of that frame, and the line of its `with`."""

    code: types.CodeType
    line: int


@dataclass(frozen=True, slots=True)
class ScriptFrame:
    """A frame of the script, its function, and the loops inside of the `with` around its line, outermost first."""

    frame: types.FrameType
    function: Function
    loops: tuple[Loop, ...]

    def value_of(self, name: str) -> Any:
        """What a name means in this frame. Raises KeyError."""
        return self.frame.f_locals[name] if name in self.frame.f_locals else self.frame.f_globals[name]

    def place(self, node: ast.AST) -> str:
        """A line of the script, as file:line."""
        return f"{Path(self.frame.f_code.co_filename).name}:{getattr(node, 'lineno', self.frame.f_lineno)}"


def script_frame_of(frame: types.FrameType | None) -> types.FrameType | None:
    """The innermost frame, from `frame` outwards, that is not of this package or of `contextlib`."""
    while frame is not None and (
        frame.f_code.co_filename.startswith(_PACKAGES) or frame.f_globals.get("__name__") == "contextlib"
    ):
        frame = frame.f_back
    return frame


def script_frames(frame: types.FrameType | None, entered: Entered | None) -> list[ScriptFrame]:
    """The frames from `frame` out to the one that entered the run, as far as their source is there, innermost first."""
    chain = []
    each = script_frame_of(frame)
    while each is not None:
        chain.append(each)
        if entered is not None and each.f_code is entered.code:
            break
        each = each.f_back
    else:  # the run was entered elsewhere, as by a function that gives it; loops further out may be around that
        chain = chain[:1]
    found = []
    for number, each in enumerate(chain):
        function = function_of(each)
        if function is None:
            continue
        after = entered.line if entered is not None and each.f_code is entered.code else 0
        loops = tuple(loop for loop in _loops_around(function, each.f_lineno) if loop.lineno > after)
        if loops or number == 0:
            found.append(ScriptFrame(each, function, loops))
    return found


def function_of(frame: types.FrameType) -> Function | None:
    """The source of the function that runs in a frame; None if there is none."""
    tree = _parse(frame.f_code.co_filename)
    if tree is None or frame.f_code.co_name == "<module>":
        return tree
    for each in ast.walk(tree):
        if (
            isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            and each.name == frame.f_code.co_name
            and frame.f_code.co_firstlineno == min(one.lineno for one in (each, *each.decorator_list))
        ):
            return each
    return None


@functools.lru_cache(maxsize=16)
def _parse(filename: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(filename))) if linecache.getlines(filename) else None
    except (SyntaxError, ValueError):
        return None


def _loops_around(function: Function, line: int) -> Iterator[Loop]:
    for each in statements(function.body):
        if isinstance(each, Loop) and each.body[0].lineno <= line <= (each.end_lineno or line):
            yield each


def statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a block, those inside them after each, without those of nested functions and classes."""
    for each in body:
        yield each
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for name in ("body", "orelse", "finalbody"):
            yield from statements(getattr(each, name, []))
        for handler in (*getattr(each, "handlers", ()), *getattr(each, "cases", ())):
            yield from statements(handler.body)


def names_in_loops(frame: ScriptFrame) -> set[str] | None:
    """The names that the loops around a line use; None if there is no loop.

    What else the function uses runs before the loops, in each process anew, or after them.
    """
    if not frame.loops:
        return None
    return {each.id for each in ast.walk(frame.loops[0]) if isinstance(each, ast.Name)}


def takes_batches(loop: Loop) -> bool:
    """Whether a loop runs over `run.batches` or `run.steps`."""
    over = loop.test if isinstance(loop, ast.While) else loop.iter
    return any(isinstance(each, ast.Attribute) and each.attr in ("batches", "steps") for each in ast.walk(over))


def early_ends(frames: Sequence[ScriptFrame]) -> list[Finding]:
    """Each `break` out of a loop over `run.batches` that stands behind the line of `step_done`; and what else ends
    such a loop before its data do: `islice`, `zip`.

    A restart from the checkpoint of that step does not know of it, and trains on. `frames`: of the call of `step_done`.
    """
    places = [
        f"break ({frame.place(each)})"
        for frame in frames
        for loop in frame.loops
        if takes_batches(loop)
        for each in _breaks(loop.body, frame.frame.f_lineno)
    ]
    counted = [
        f"{_name_of_call(call)} ({frame.place(call)})"
        for frame in frames
        for loop in frame.loops
        if takes_batches(loop) and isinstance(loop, ast.For | ast.AsyncFor)
        for call in ast.walk(loop.iter)
        if isinstance(call, ast.Call) and _name_of_call(call) in ("islice", "zip") and not _reads_batch(call)
    ]
    return [
        *[
            Finding(place, "it counts anew after a restart within the epoch; limit the data: dataset.take(n)")
            for place in counted
        ],
        *[
            Finding(
                place,
                "a restart from the checkpoint of the step before it trains one batch more; test for it before the "
                'training step, or give total_steps=, or give "break" to leave_out= if that does not matter',
            )
            for place in places
        ],
    ]


def _name_of_call(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _reads_batch(node: ast.AST) -> bool:
    """Whether an expression begins at `run.batch`."""
    return any(isinstance(each, ast.Attribute) and each.attr == "batch" for each in ast.walk(node))


def _breaks(body: Sequence[ast.stmt], behind: int) -> Iterator[ast.Break]:
    """The `break` statements of a loop's own behind a line, unless the run's own count of steps leads to them."""
    for each in body:
        if isinstance(each, ast.Break) and each.lineno > behind:
            yield each
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | Loop):
            continue
        if isinstance(each, ast.If) and any(
            isinstance(part, ast.Attribute) and part.attr in ("reached", "total_steps") for part in ast.walk(each.test)
        ):
            continue
        for name in ("body", "orelse", "finalbody"):
            yield from _breaks(getattr(each, name, []), behind)
        for handler in (*getattr(each, "handlers", ()), *getattr(each, "cases", ())):
            yield from _breaks(handler.body, behind)


def explain_loop_that_begins_again(frames: Sequence[ScriptFrame], run: Any) -> str | None:
    """Why a loop around `run.batches` would not go on where the job stopped, and what to write; None if it would."""
    for each in frames:
        for loop in reversed(each.loops):
            if takes_batches(loop) or _follows_run(loop, each, run):
                continue
            line = ast.unparse(loop).partition("\n")[0]
            return (
                f'cannot resume this loop: "{line}" ({each.place(loop)}) begins again at its start after a restart; '
                f'write "{_loop_to_write(loop, each, run)}"'
            )
    return None


def _follows_run(loop: Loop, frame: ScriptFrame, run: Any) -> bool:
    """Whether a loop depends on how far the run is."""
    if isinstance(loop, ast.While):
        if isinstance(loop.test, ast.Constant) or _mentions_run(loop.test, frame, run):
            return True
        return any(_mentions_run(each, frame, run, calls=False) for each in loop.body)
    begin = loop.iter
    for each in ast.walk(loop.iter):
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id in ("range", "trange"):
            if len(each.args) >= 2 and isinstance(each.args[0], ast.Name) and _is_parameter(each.args[0].id, frame):
                return True  # whoever calls the function says where to begin
            begin = each
    return _mentions_run(begin, frame, run)


def _mentions_run(node: ast.AST, frame: ScriptFrame, run: Any, calls: bool = True, depth: int = 3) -> bool:
    """Whether an expression reads the run, or a name that was made from it. `calls`: also as an argument."""
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and each.attr in _RUN_ATTRIBUTES - {"batches", "batch", "state"}:
            if calls or isinstance(each.ctx, ast.Load):
                return True
        elif isinstance(each, ast.Name) and calls:
            try:
                if frame.value_of(each.id) is run:
                    return True
            except KeyError:
                pass
            values = assigned_values(frame.function, each.id)
            if depth > 0 and any(_mentions_run(value, frame, run, True, depth - 1) for value in values):
                return True
    return False


def assigned_values(function: Function, name: str) -> list[ast.expr]:
    """All expressions that a function assigns to a name."""
    found = []
    for each in statements(function.body):
        targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
        is_of_name = any(isinstance(target, ast.Name) and target.id == name for target in targets)
        if is_of_name and isinstance(each, ast.Assign | ast.AnnAssign | ast.AugAssign) and each.value is not None:
            found.append(each.value)
    return found


def _is_parameter(name: str, frame: ScriptFrame) -> bool:
    return name in frame.frame.f_code.co_varnames[: frame.frame.f_code.co_argcount]


def _loop_to_write(loop: Loop, frame: ScriptFrame, run: Any) -> str:
    names = [name for name, value in [*frame.frame.f_locals.items(), *frame.frame.f_globals.items()] if value is run]
    name = names[0] if names else "run"
    if isinstance(loop, ast.While):
        return f"for epoch in {name}.epochs(n):"
    count = "n"
    for each in ast.walk(loop.iter):
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id in ("range", "trange"):
            count = _count_of_range(each)
    return f"for {ast.unparse(loop.target)} in {name}.epochs({count}):"


def _count_of_range(call: ast.Call) -> str:
    if len(call.args) == 1:
        return ast.unparse(call.args[0])
    start, stop = call.args[0], call.args[1]
    if not (isinstance(start, ast.Constant) and start.value == 1):
        return ast.unparse(stop)
    if isinstance(stop, ast.BinOp) and isinstance(stop.op, ast.Add) and ast.unparse(stop.right) == "1":
        return ast.unparse(stop.left)
    return f"{ast.unparse(stop)} - 1"
