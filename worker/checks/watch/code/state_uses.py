"""What a script's source puts into `run.state`, and which of its entries the source takes from there."""

import ast
import functools
import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeGuard

from worker.checks import loop_source
from worker.checks.loop_lines import calls, name_of_call
from worker.checks.watch.code.loop_heads import value_named
from worker.state.run_state import RunState

Keys = frozenset[str | None]
"""Names of entries; None: which ones is not known."""


_SHOWING = frozenset({"print", "pprint", "debug", "info", "warning", "error", "log", "write", "len", "str", "repr"})
"""Names of functions that put nothing into what they get."""


def names_put_into_state(function: loop_source.Function | None, values: Mapping[str, Any]) -> Mapping[str, Keys]:
    """Names whose value a statement of the function puts into `run.state`, with the entries that get it. `values`: of
    the function's names, by which the `state` of another object is known.

    What an entry is only changed by (`run.state["losses"].append(loss)`, `run.state["sum"] += loss`) is not put there.
    """
    return {} if function is None else _names_put(function, _states_of_others(function, values))


def expressions_put_into_state(
    function: loop_source.Function | None, values: Mapping[str, Any]
) -> tuple[ast.expr, ...]:
    """Those whose value a statement of the function puts into `run.state`."""
    return () if function is None else _expressions_put(function, _states_of_others(function, values))


def _states_of_others(function: loop_source.Function, values: Mapping[str, Any]) -> frozenset[str]:
    """The `state` of other objects, as text."""
    return frozenset(ast.unparse(node) for node in _states_in(function) if _is_of_another_object(node, values))


@functools.lru_cache(maxsize=256)
def _states_in(function: loop_source.Function) -> tuple[ast.Attribute, ...]:
    return tuple(node for node in ast.walk(function) if isinstance(node, ast.Attribute) and node.attr == "state")


def _is_of_another_object(node: ast.Attribute, values: Mapping[str, Any]) -> bool:
    """Whether it is the `state` of an object that is known to be no run, as of a trainer or an environment."""
    holder = value_named(node.value, values)
    if holder is None or hasattr(type(holder), "step_done"):
        return False
    held = value_named(node, values)
    return held is not None and not isinstance(held, RunState | property)


@functools.lru_cache(maxsize=256)
def _names_put(function: loop_source.Function, others: Collection[str]) -> Mapping[str, Keys]:
    put: dict[str, Keys] = {}
    for statement in loop_source.statements(function.body):
        for expression, key in _put_by(statement, others):
            for name in _names(expression):
                put[name] = put.get(name, frozenset()) | {key}
    return put


@functools.lru_cache(maxsize=256)
def _expressions_put(function: loop_source.Function, others: Collection[str]) -> tuple[ast.expr, ...]:
    statements = loop_source.statements(function.body)
    return tuple(expression for statement in statements for expression, _ in _put_by(statement, others))


def _put_by(statement: ast.stmt, others: Collection[str]) -> Iterator[tuple[ast.expr, str | None]]:
    """`others`: the `state` of other objects, as text."""

    def is_state(node: ast.AST) -> bool:
        return _is_state(node) and ast.unparse(node) not in others

    def reads_state(node: ast.AST) -> bool:
        return any(map(is_state, ast.walk(node)))

    def gives_state(call: ast.Call) -> bool:
        """Whether a function gets it that may put something there, and does not only show what is there."""
        given = [*call.args, *(word.value for word in call.keywords)]
        return any(map(is_state, given)) and name_of_call(call) not in _SHOWING

    match statement:
        case ast.Assign(targets=targets, value=value) if not reads_state(value):
            parts = list(itertools.chain.from_iterable(map(ast.walk, targets)))
            entries = [part for part in parts if isinstance(part, ast.Subscript) and is_state(part.value)]
            for entry in entries:
                yield value, _constant(entry.slice)
            if not entries and any(map(is_state, parts)):
                yield value, None
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=called, attr="update"), args=given, keywords=named)) if (
            is_state(called)
        ):
            yield from ((value, None) for value in given)
            yield from ((keyword.value, keyword.arg) for keyword in named)
        case ast.Expr(value=value) if any(map(gives_state, calls(value))):
            yield value, None


@functools.lru_cache(maxsize=256)
def entries_taken(tree: ast.AST) -> Keys:
    """The names of the entries that some code reads; None among them: it may read any."""
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    states = [node for node in ast.walk(tree) if _is_state(node) and isinstance(node.ctx, ast.Load)]
    return frozenset(itertools.chain.from_iterable(_taken(node, parents) for node in states))


def _taken(state: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> tuple[str | None, ...]:
    around = parents.get(state)
    match around:
        case ast.Subscript(slice=entry, ctx=context) if around.value is state:
            is_read = isinstance(context, ast.Load) or isinstance(parents.get(around), ast.AugAssign)
            return (_constant(entry),) if is_read else ()
        case ast.Attribute(attr="update"):
            return ()
        case ast.Attribute(attr="get" | "pop" | "setdefault"):
            match parents.get(around):
                case ast.Call(args=[ast.Constant(value=str(key)), *_]):
                    return (key,)
        case ast.Compare(left=ast.Constant(value=str(key))):
            return (key,)
    return (None,)


def _constant(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _names(node: ast.expr) -> Iterator[str]:
    return (part.id for part in ast.walk(node) if isinstance(part, ast.Name))


def _is_state(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and node.attr == "state" and isinstance(node.value, ast.Name | ast.Attribute)
