"""What a function that TensorFlow traces leaves to Python: the functions that it gives to `tf.numpy_function` and
`tf.py_function` run in each step, and what they read is no constant. Imports no framework.
"""

import ast
import collections
import functools
import types
from collections.abc import Iterable, Iterator

from worker.checks import loop_source
from worker.checks.loop_lines import calls, name_of_call
from worker.checks.watch.script_objects import names_in_code

_LEFT_TO_PYTHON = frozenset({"numpy_function", "py_function", "py_func", "eager_py_func"})


@functools.lru_cache(maxsize=1024)
def names_traced(code: types.CodeType) -> frozenset[str]:
    """The names in a function's code, without those that stand only in what it leaves to Python."""
    names = frozenset(names_in_code(code))
    function = None if names.isdisjoint(_LEFT_TO_PYTHON) else loop_source.function_of(code)
    if function is None:
        return names
    everywhere = collections.Counter(_names([function]))
    left = collections.Counter(_names(_given_to_python(function)))
    return names - {name for name, count in left.items() if count == everywhere[name]}


def _given_to_python(function: ast.AST) -> Iterator[ast.AST]:
    for call in calls(function):
        if name_of_call(call) in _LEFT_TO_PYTHON:
            yield from call.args[:1] or (word.value for word in call.keywords if word.arg == "func")


def _names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        for part in ast.walk(node):
            if isinstance(part, ast.Name | ast.Attribute):
                yield part.id if isinstance(part, ast.Name) else part.attr
