"""Which statements of a script surely change nothing that a checkpoint holds? Those that print, wait, test or end.

Concluded from the source alone, before it runs, so anything that is not known counts as a change.
"""

import ast

from worker.checks.loop_lines import name_of_call

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


def changes_nothing(statement: ast.stmt) -> bool:
    """Whether a statement itself, without the statements inside of it, surely changes no saved state.

    A name of its own that it assigns is no saved state.
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
