"""What the heads of the loops around a step set anew in each pass: `model.rate = 0.1 * 0.9**epoch`, and what a function
of the script sets that is called there, `augmentation.begin(epoch)`. Imports no framework.
"""

import ast
import types
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeGuard

from worker.checks import loop_source
from worker.checks.loop_lines import name_of_call
from worker.checks.reachability import is_installed_file
from worker.checks.watch.code.bytecode import flow_of


def attributes_set_in_heads(frame: types.FrameType) -> tuple[frozenset[str], ...]:
    """By loop around where a frame stands, the innermost first: the attributes, of any object, that each pass sets."""
    function = loop_source.function_of(frame.f_code)
    loops = loop_source.loops_around(function, frame.f_lineno) if function is not None else ()
    by_loop = []
    for loop in sorted(loops, key=lambda loop: -loop.lineno):
        names: set[str] = set()
        targets = {part.id for part in ast.walk(loop.target) if isinstance(part, ast.Name)} if _is_for(loop) else set()
        for statement in _run_in_each_pass(loop.body, frame.f_lineno, targets):
            if isinstance(statement, ast.Assign):
                read = {part.attr for part in ast.walk(statement.value) if isinstance(part, ast.Attribute)}
                names |= {target.attr for target in statement.targets if isinstance(target, ast.Attribute)} - read
            elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                names |= _SET_BY.get(name_of_call(statement.value), frozenset()) | _set_by(statement.value.func, frame)
        by_loop.append(frozenset(names))
    return tuple(by_loop)


def read_behind(frame: types.FrameType) -> frozenset[str]:
    """The names, also of attributes, that the function reads behind the statement where a frame stands, as in the tail
    of an epoch."""
    function, line = loop_source.function_of(frame.f_code), frame.f_lineno
    if function is None:
        return frozenset()
    own = [part for part in ast.walk(function) if isinstance(part, ast.stmt | ast.Name | ast.Attribute)]
    around = [part for part in own if isinstance(part, ast.stmt) and part.lineno <= line <= (part.end_lineno or line)]
    end = min((part.end_lineno or line for part in around), default=line)
    behind = [part for part in own if part.lineno > end]
    return frozenset(
        part.id if isinstance(part, ast.Name) else part.attr
        for part in behind
        if isinstance(part, ast.Name | ast.Attribute) and isinstance(part.ctx, ast.Load)
    )


_SET_BY = {"requires_grad_": {"requires_grad"}, "train": {"training"}, "eval": {"training"}}
"""The settings that methods of PyTorch set."""


def _is_for(loop: loop_source.Loop) -> TypeGuard[ast.For | ast.AsyncFor]:
    return not isinstance(loop, ast.While)


def _run_in_each_pass(body: Iterable[ast.stmt], line: int, targets: set[str]) -> Iterator[ast.stmt]:
    """The statements of a loop's body that end before a line and run in each pass, or from a certain pass on:
    `if epoch >= 3:`. `targets`: of the loop."""
    for statement in body:
        if (statement.end_lineno or 0) >= line:
            return
        match statement:
            case ast.For() | ast.With():
                yield from _run_in_each_pass(statement.body, line, targets)
            case ast.If(test=ast.Compare(ops=operators) as test) if all(
                isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for operator in operators
            ) and any(isinstance(part, ast.Name) and part.id in targets for part in ast.walk(test)):
                yield from _run_in_each_pass([*statement.body, *statement.orelse], line, targets)
            case _:
                yield statement


def _set_by(called: ast.expr, frame: types.FrameType) -> frozenset[str]:
    """The attributes that a function of the script sets before it reads them, whichever way it takes."""
    function = _function_of(called, frame)
    if function is None or is_installed_file(function.__code__.co_filename):
        return frozenset()
    flow = flow_of(function.__code__)
    return frozenset(name for name in flow.attributes_stored if flow.assigns_first(name, is_attribute=True))


def _function_of(called: ast.expr, frame: types.FrameType) -> types.FunctionType | None:
    """The function behind `begin` or `agent.meter.begin`; None if it is none of Python's or nobody knows which."""
    found = value_named(called, ChainMap(dict(frame.f_locals), frame.f_globals))
    return found if isinstance(found, types.FunctionType) else None


def value_named(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """What a name, or an attribute behind names (`agent.meter.begin`), stands for; None if that is not known."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        holder = value_named(node.value, names)
        for namespace in (holder, *type(holder).__mro__):  # no property is called
            held = getattr(namespace, "__dict__", {})
            if node.attr in held:
                return held[node.attr]
    return None
