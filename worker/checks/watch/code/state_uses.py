"""What a script's source puts into `run.state`, and which of its entries the source takes from there."""

import ast
import functools
import itertools
from collections.abc import Iterator, Mapping
from typing import TypeGuard

from worker.checks import loop_source

Keys = frozenset[str | None]
"""Names of entries; None: which ones is not known."""


@functools.lru_cache(maxsize=256)
def names_put_into_state(function: loop_source.Function | None) -> Mapping[str, Keys]:
    """Names whose value a statement of the function puts into `run.state`, with the entries that get it.

    What an entry is only changed by (`run.state["losses"].append(loss)`, `run.state["sum"] += loss`) is not put there.
    """
    put: dict[str, Keys] = {}
    for statement in loop_source.statements(function.body) if function is not None else ():
        for name, key in _put_by(statement):
            put[name] = put.get(name, frozenset()) | {key}
    return put


def _put_by(statement: ast.stmt) -> Iterator[tuple[str, str | None]]:
    match statement:
        case ast.Assign(targets=targets, value=value) if not _reads_state(value):
            parts = list(itertools.chain.from_iterable(map(ast.walk, targets)))
            entries = [part for part in parts if isinstance(part, ast.Subscript) and _is_state(part.value)]
            for entry in entries:
                yield from ((name, _constant(entry.slice)) for name in _names(value))
            if not entries and any(map(_is_state, parts)):
                yield from ((name, None) for name in _names(value))
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=called, attr="update"), args=given, keywords=named)) if (
            _is_state(called)
        ):
            yield from ((name, None) for value in given for name in _names(value))
            yield from ((name, keyword.arg) for keyword in named for name in _names(keyword.value))
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=entry), args=given, keywords=named)) if _reads_state(
            entry
        ):
            values = [*given, *(keyword.value for keyword in named)]
            if any(map(_reads_state, values)):
                yield from ((name, None) for value in values for name in _names(value))
        case ast.Expr(value=value) if _reads_state(value):
            yield from ((name, None) for name in _names(value))


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


def _reads_state(node: ast.expr) -> bool:
    return any(map(_is_state, ast.walk(node)))


def _is_state(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and node.attr == "state" and isinstance(node.value, ast.Name | ast.Attribute)
