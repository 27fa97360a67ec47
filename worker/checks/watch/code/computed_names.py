"""Which attributes the code that restores a state computes from what was saved: `layer.norm = norm(layer.w)` in a
method that `read` calls. They are made again at each start, though no file has them. Imports no framework.
"""

import ast
import functools
import sys
import types
from collections.abc import Collection, Iterator
from typing import Any

from worker.checks import loop_source
from worker.checks.watch.script_objects import FRAMEWORKS, SKIPPED, is_scripts_class, names_in_code, package_of_name


def attributes_computed(read: Any, saved: Collection[str]) -> frozenset[str]:
    """The attributes, of any object, that a method of the script, or what it calls by name, assigns from values of
    attributes with names in `saved`."""
    own = getattr(read, "__func__", read)
    if not isinstance(own, types.FunctionType):
        return frozenset()
    kind: Any = type(getattr(read, "__self__", None))
    return _attributes_computed(own, kind, frozenset(saved))


@functools.lru_cache(maxsize=64)
def _attributes_computed(read: types.FunctionType, kind: Any, saved: frozenset[str]) -> frozenset[str]:
    assignments = [
        (target.attr, _names(value))
        for function in _functions_called(read, kind)
        for targets, value in _assignments(function)
        for target in targets
        if isinstance(target, ast.Attribute)
    ]
    known, count = set(saved), -1
    while count != len(known):
        count = len(known)
        known |= {name for name, read_names in assignments if not known.isdisjoint(read_names)}
    return frozenset(known - saved)


def _functions_called(read: types.FunctionType, kind: type) -> Iterator[types.FunctionType]:
    """The function of a method, and those that it calls: of its module, and methods of the script's classes there."""
    classes = [value for value in read.__globals__.values() if isinstance(value, type) and is_scripts_class(value)]
    classes += [owner for owner in kind.__mro__ if is_scripts_class(owner)]
    waiting, seen = [read], set[types.CodeType]()
    while waiting:
        function = waiting.pop()
        package = package_of_name(function.__module__ or "")
        if function.__code__ in seen or package in FRAMEWORKS | SKIPPED | sys.stdlib_module_names:
            continue
        seen.add(function.__code__)
        yield function
        for name in names_in_code(function.__code__):
            called = [function.__globals__.get(name), *(vars(owner).get(name) for owner in classes)]
            waiting += [value for value in called if isinstance(value, types.FunctionType)]


def _assignments(function: types.FunctionType) -> Iterator[tuple[list[ast.expr], ast.expr]]:
    source = loop_source.function_of(function.__code__)
    for statement in loop_source.statements(source.body) if source is not None else ():
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
                yield list(parts), statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            yield [statement.target], statement.value


def _names(value: ast.expr) -> set[str]:
    """The attributes that an expression reads, and the texts in it, as those under which a file has them."""
    attributes = {part.attr for part in ast.walk(value) if isinstance(part, ast.Attribute)}
    return attributes | {
        part.value for part in ast.walk(value) if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }
