"""What stands behind `step_done` in the body of a loop: the checkpoint of the step may not have what it changes.

Where the loop pulls from the run, the next pull is the end of the step, and is when it is saved. Where it does not, as
in `while run.step < n:`, what surely changes saved state there is named. Imports no framework.
"""

import ast
from collections.abc import Sequence
from typing import Any

from worker.checks.findings import Finding
from worker.checks.loop_lines import name_of_call, run_name
from worker.checks.loop_source import ScriptFrame, statements
from worker.checks.own_loops import LoopJudge
from worker.checks.pulls import Pulls
from worker.checks.run_heads import saved_state_changed_by

_HARMLESS_CALLS = frozenset(
    {
        *("print", "write", "flush", "info", "debug", "warning", "log", "format", "set_postfix", "set_description"),
        *("sleep", "time", "perf_counter", "monotonic", "kill", "getpid", "exit", "_exit"),
        *("float", "int", "str", "len", "round", "min", "max", "sum"),
        *("isinstance", "isnan", "isfinite", "numpy", "item"),
    }
)
"""Names of functions that only show, wait, end the process, or compute a plain value."""
_ENDS = (ast.Pass, ast.Continue, ast.Break, ast.Raise, ast.Assert, ast.Import, ast.ImportFrom)


def has_code_behind_step(frames: Sequence[ScriptFrame], judge: LoopJudge, pulls: Pulls) -> bool:
    """Whether code that may change what checkpoints hold stands behind the step, in the body of the `for` loop that
    pulls its batch from the run. `frames`: from the step outwards."""
    is_behind = False
    for frame in frames:
        line = frame.frame.f_lineno
        if frame.is_library:
            return False
        pulling = next((loop for loop in reversed(frame.loops) if judge.pulled(loop, frame, pulls.of_reader)), None)
        body = frame.function.body if pulling is None else pulling.body
        is_behind = is_behind or any(
            statement.lineno > line and not _changes_nothing(statement) for statement in statements(body)
        )
        if pulling is not None:
            return is_behind
    return False


def changes_behind_step(frames: Sequence[ScriptFrame], judge: LoopJudge, pulls: Pulls, run: Any) -> list[Finding]:
    """What surely changes saved state behind the step in a loop that pulls nothing from the run."""
    if not frames or not frames[0].loops or frames[0].is_library:
        return []
    around = [(loop, frame) for frame, loop in judge.loops()]
    if any(judge.pulled(loop, frame, of) for loop, frame in around for of in (pulls.of_reader, pulls.of_epochs)):
        return []
    frame, name = frames[0], run_name(frames[0], run)
    return [
        Finding(
            f"{ast.unparse(changed)} ({frame.place(changed.lineno)})",
            f"it changes behind {name}.step_done, so the step's checkpoint does not have it: call {name}.step_done "
            f"last, or loop over {name}.range(n)",
        )
        for statement in statements(frame.loops[-1].body)
        if statement.lineno > frame.frame.f_lineno
        for changed in saved_state_changed_by(statement, name)
    ]


def _changes_nothing(statement: ast.stmt) -> bool:
    """Whether a statement itself, without the statements inside of it, surely changes no saved state.

    Concluded from the source alone, before it runs, so anything that is not known counts as a change. A name of its own
    that it assigns is no saved state.
    """
    match statement:
        case ast.If(test=expression) | ast.While(test=expression) | ast.Expr(value=expression):
            return _is_harmless(expression)
        case ast.Assign(targets=targets, value=expression):
            return all(isinstance(target, ast.Name) for target in targets) and _is_harmless(expression)
        case ast.AugAssign(target=ast.Name(), value=expression) | ast.For(target=ast.Name(), iter=expression):
            return _is_harmless(expression)
        case ast.Return(value=None):
            return True
        case ast.Return(value=ast.expr() as expression):
            return _is_harmless(expression)
    return isinstance(statement, _ENDS)


def _is_harmless(expression: ast.expr) -> bool:
    return not any(
        isinstance(part, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom)
        or (isinstance(part, ast.Call) and name_of_call(part) not in _HARMLESS_CALLS)
        for part in ast.walk(expression)
    )
