"""Which parts of an object a script puts into `run.state`: of `run.state["obs"] = env.reset()` none, and of
`run.state["best"] = tracker.best` one attribute. What else such an object holds is not in the checkpoint."""

import ast
import types
from collections.abc import Iterator, Mapping
from typing import Any

from worker.checks import loop_source
from worker.checks.watch.code.loop_heads import value_named
from worker.checks.watch.code.state_uses import expressions_put_into_state
from worker.checks.watch.digests import is_plain
from worker.checks.watch.script_objects import (
    function_of,
    is_installed,
    is_scripts,
    is_scripts_class,
    is_searched,
    names_in_code,
)

Parts = list[tuple[Any, str]]
"""Objects and the names of their attributes."""
_GIVING = ("state", "dict", "copy", "dump", "pack", "save", "get", "to_", "export", "snapshot", "serial", "tolist")
"""What is in the names of methods that give an object's content."""
_CHANGING = frozenset(
    {"reset", "step", "append", "appendleft", "extend", "add", "pop", "popleft", "insert", "remove", "clear",
     "setattr", "send", "put", "fill", "copyto"}
)  # fmt: skip
"""Names of what a method that changes an object may call."""


def parts_put_into_state(function: loop_source.Function | None, values: Mapping[str, Any]) -> Mapping[str, Parts]:
    """Of the names that a function puts into `run.state`, those that stand for objects which are not put there as a
    whole, with the parts that are. `values`: of the function's names."""
    parts: dict[str, Parts] = {}
    whole: set[str] = set()
    for expression in expressions_put_into_state(function, values):
        for name, node in _uses(expression, values):
            if not _is_object(values.get(name)):
                continue
            put = _part_of(node, values)
            if put is None:
                whole.add(name)
            else:
                parts.setdefault(name, []).extend(put)
    return {name: put for name, put in parts.items() if name not in whole}


def _is_object(value: Any) -> bool:
    """Whether it is an object whose attributes the watch compares."""
    kind: Any = type(value)
    if is_plain(value) or isinstance(value, type | types.ModuleType | types.FunctionType | types.MethodType):
        return False
    return is_scripts_class(kind) and (not is_installed(kind) or is_searched(kind))


def _uses(node: ast.AST, values: Mapping[str, Any]) -> Iterator[tuple[str, ast.expr | None]]:
    """The names in an expression, each with how it is put: as itself, an attribute, or what a method gives; None of
    what is only given to a function of the script."""
    match node:
        case ast.Name():
            yield node.id, node
        case ast.Attribute() if (root := _root_of(node)) is not None:
            yield root, node
        case ast.Call(func=called, args=arguments, keywords=words):
            if isinstance(called, ast.Attribute) and (root := _root_of(called)) is not None:
                yield root, ast.Call(called, arguments, words)
            elif not isinstance(called, ast.Name):
                yield from _uses(called, values)
            is_own = _is_own(value_named(called, values))
            for argument in (*arguments, *(word.value for word in words)):
                for name, use in _uses(argument, values):
                    yield name, None if is_own and isinstance(use, ast.Name) else use
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _uses(child, values)


def _root_of(node: ast.expr) -> str | None:
    """The name at the beginning of `agent.meter.best`; None of what is computed."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _is_own(called: Any) -> bool:
    """Whether it is a function or a method of the script."""
    function = getattr(called, "__func__", called)
    if not isinstance(function, types.FunctionType):
        return False
    return is_scripts(function.__module__ or "", function.__code__.co_filename)


def _part_of(use: ast.expr | None, values: Mapping[str, Any]) -> Parts | None:
    """What is put; None: the object as a whole."""
    match use:
        case None:
            return []
        case ast.Call(func=ast.Attribute(value=holder, attr=method)):
            held = value_named(holder, values)
            if held is not None and _is_object(held) and not _gives_content(held, method):
                return []
            return _part_of(holder, values)
        case ast.Attribute(value=holder, attr=attribute):
            held = value_named(holder, values)
            if held is None:
                return _part_of(holder, values)
            computed = next((vars(kind)[attribute] for kind in type(held).__mro__ if attribute in vars(kind)), None)
            read = function_of(computed) if isinstance(computed, property) else None
            return [(held, name) for name in (names_in_code(read.__code__) if read is not None else (attribute,))]
    return None


def _gives_content(held: Any, method: str) -> bool:
    """Whether a method gives what an object holds, and does not change it."""
    if any(part in method for part in _GIVING):
        return True
    return method not in _CHANGING and not _changes(type(held), method, 3)


def _changes(kind: type, method: str, depth: int) -> bool:
    """Whether a method of a class sets anything of its object, or calls what does."""
    function = function_of(getattr(kind, method, None))
    source = None if function is None else loop_source.function_of(function.__code__)
    if function is None or source is None or not function.__code__.co_argcount:
        return False
    own = function.__code__.co_varnames[0]
    for node in ast.walk(source):
        match node:
            case ast.Attribute(ctx=context) | ast.Subscript(ctx=context) if not isinstance(context, ast.Load):
                if _is_of(node, own):
                    return True
            case ast.Call(func=ast.Attribute(value=holder, attr=called)) if _is_of(holder, own):
                if called in _CHANGING:
                    return True
                if isinstance(holder, ast.Name) and depth > 0 and _changes(kind, called, depth - 1):
                    return True
    return False


def _is_of(node: ast.expr, name: str) -> bool:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return isinstance(node, ast.Name) and node.id == name
