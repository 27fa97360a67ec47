"""Python variables outside of callbacks that their functions use: names of the enclosing function, and globals.

`LambdaCallback(on_epoch_end=lambda epoch, logs: losses.append(logs["loss"]))` has its state in such a variable.
"""

import functools
import types
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from worker.checks import reachability

MAX_BYTES = 1_000_000  # of arrays in one variable; larger ones are data, which is not hashed for each checkpoint
MAX_VALUES = 10_000
_PLAIN = (bool, int, float, str, bytes, type(None), np.generic)


@dataclass(frozen=True, slots=True)
class OuterVariable:
    """A variable of an enclosing function (`cell`) or of a module (`names`)."""

    name: str
    cell: types.CellType | None
    names: dict[str, Any]

    @property
    def value(self) -> Any:
        """What it holds now."""
        return self.names.get(self.name) if self.cell is None else self.cell.cell_contents

    def set(self, value: Any) -> None:
        """Makes it hold another value."""
        if self.cell is None:
            self.names[self.name] = value
        else:
            self.cell.cell_contents = value


def outer_variables(callback: Any) -> dict[str, OuterVariable]:
    """Those that may hold state (values, containers and small arrays), by a name that is the same in each process."""
    variables: dict[str, OuterVariable] = {}
    for function in _functions_of(callback):
        for variable in _variables_of(function):
            if _may_be_state(variable.value):
                where = function.__qualname__ if variable.cell is not None else function.__module__
                variables.setdefault(f"{variable.name} of {where.replace('.<locals>', '')}", variable)
    return variables


def _functions_of(callback: Any) -> list[types.FunctionType]:
    """The script's functions that the callback calls, and those that they call."""
    waiting = [*reachability.script_methods_of(callback), *vars(callback).values()]
    functions: dict[int, types.FunctionType] = {}
    for value in waiting:
        kind = type(value)  # isinstance would ask for `__class__`, which some proxies answer with an error
        if issubclass(kind, functools.partial):
            waiting.append(value.func)
        if issubclass(kind, types.MethodType) and value.__self__ is not callback:
            waiting.append(value.__func__)
        if (
            issubclass(kind, types.FunctionType)
            and id(value) not in functions
            and not reachability.is_of_library(value.__module__ or "")
        ):
            functions[id(value)] = value
            waiting.extend(variable.value for variable in _variables_of(value))
    return list(functions.values())


def _variables_of(function: types.FunctionType) -> Iterator[OuterVariable]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            _ = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        yield OuterVariable(name, cell, {})
    names = function.__globals__
    yield from (
        OuterVariable(name, None, names) for name in reachability.global_names(function.__code__) if name in names
    )


def _may_be_state(value: Any) -> bool:
    """Whether it is a plain value, or a container or an array that is not large."""
    left_bytes, left_values = MAX_BYTES, MAX_VALUES
    waiting = [value]
    for part in waiting:
        left_values -= 1
        if issubclass(type(part), np.ndarray):
            left_bytes -= part.nbytes
        elif issubclass(type(part), dict):
            waiting.extend(part.values())
        elif issubclass(type(part), list | tuple | set | frozenset | deque):
            waiting.extend(part)
        elif not issubclass(type(part), _PLAIN) and part is value:
            return False
        if left_bytes < 0 or left_values < 0 or len(waiting) > MAX_VALUES:
            return False
    return True
