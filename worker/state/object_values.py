"""Saves the values that Python objects hold as JSON and arrays, and restores them into the objects of another process.

Adds TensorFlow's objects and those of the script's classes to `plain_values`. Variables, generators and objects of the
script's classes are filled in place too.
"""

import functools
import io
import logging
import threading
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from supervisor.protocol.plurals import counted
from worker.state.plain_values import LIBRARIES, PLAIN, NotSaveable, SavedValue, class_module
from worker.state.replica_values import assign_copies, replica_copies
from worker.state.value_restorer import NotRestorable, ValueRestorer, describe_present

__all__ = ["NotRestorable", "NotSaveable", "ObjectRestorer", "SavedObject"]

_STATELESS = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, type, functools.partial,
    logging.Logger, io.IOBase, threading.Thread, type(threading.Lock()), type(threading.RLock()), threading.Event,
    tf.distribute.Strategy, tf.data.Dataset, tf.summary.SummaryWriter, tf.keras.losses.Loss,
    tf.types.experimental.PolymorphicFunction,
)  # fmt: skip
"""Objects that each process makes for itself and that hold no state a checkpoint could keep."""


class SavedObject(SavedValue):
    """One value as JSON (`json`) and arrays (`arrays`, by the names that the JSON gives them).

    `live`: the variables and generators whose state it contains. Raises NotSaveable.
    """

    def __init__(self, value: Any, known: frozenset[int] = frozenset()) -> None:
        """`known`: ids of variables and other objects that are saved elsewhere or need not be saved."""
        self.live: list[Any] = []
        self._known = known
        super().__init__(value)

    def _save_value(self, value: Any, path: str) -> Any:
        if type(value) not in PLAIN and (
            id(value) in self._known
            or (isinstance(value, _STATELESS) and not isinstance(value, tf.Module | tf.keras.layers.Layer))
        ):
            return {"kind": "same", "class": type(value).__qualname__}
        return super()._save_value(value, path)

    def _save_generator(self, value: Any) -> Any:
        saved = super()._save_generator(value)
        if saved is not None:
            self.live.append(value)
        return saved

    def _save_object(self, value: Any, path: str) -> Any:
        if isinstance(value, tf.keras.random.SeedGenerator | tf.random.Generator):
            return {"kind": "variables", "values": self._save_variables([value.state], value, path)}
        variables = variables_of(value)
        if variables is not None:
            return {"kind": "variables", "values": self._save_variables(variables, value, path)}
        if class_module(type(value)).partition(".")[0] in LIBRARIES or not hasattr(value, "__dict__"):
            raise NotSaveable(f"{path} (a {type(value).__name__})")
        attributes = list(vars(value).items())
        return {
            "kind": "object",
            "class": type(value).__qualname__,
            "attributes": {name: self._save_value(attribute, f"{path}.{name}") for name, attribute in attributes},
        }

    def _save_variables(self, variables: list[Any], holder: Any, path: str) -> list[Any]:
        own = [variable for variable in variables if not self._known.intersection(identities(variable))]
        self.live.extend([holder, *own])
        return [
            [self._store_array(np.asarray(copy.numpy()), path) for copy in replica_copies(variable)] for variable in own
        ]


def variables_of(value: Any) -> list[Any] | None:
    """The variable itself, or the variables of a layer, metric, optimizer or module in their order; else None."""
    if isinstance(value, tf.Variable | tf.keras.Variable):
        return [value]
    if isinstance(value, tf.keras.layers.Layer | tf.keras.optimizers.Optimizer | tf.keras.Metric | tf.Module):
        return list(value.variables)
    return None


def identities(variable: Any) -> set[int]:
    """The ids under which one variable may appear: Keras' wrapper, TensorFlow's variable in it, each replica's part."""
    if isinstance(variable, tf.keras.random.SeedGenerator):
        variable = variable.state
    inner = variable.value if isinstance(variable, tf.keras.Variable) else variable
    parts = getattr(inner, "values", ()) if isinstance(inner, tf.Variable) else ()
    return {id(variable), id(inner), *map(id, parts)}


class ObjectRestorer(ValueRestorer):
    """Restores values from the JSON and arrays of a `SavedObject`."""

    def __init__(self, arrays: Mapping[str, np.ndarray[Any, Any]], known: frozenset[int] = frozenset()) -> None:
        super().__init__(arrays)
        self._known = known

    def _restore_object(self, kind: str, saved: dict[str, Any], present: Any) -> Any:
        if kind == "same":
            if present is None:
                raise NotRestorable(f"it was a {saved.get('class', 'object')}, which only this process can create")
            return present
        if kind == "variables":
            self._restore_variables(saved["values"], present)
            return present
        if kind == "object" and type(present).__qualname__ == saved["class"] and hasattr(present, "__dict__"):
            for name, attribute in saved["attributes"].items():
                # not setattr, which the class may refuse
                vars(present)[name] = self.restore_value(attribute, vars(present).get(name))
            return present
        return super()._restore_object(kind, saved, present)

    def _restore_variables(self, values: list[Any], present: Any) -> None:
        holds_seed = isinstance(present, tf.keras.random.SeedGenerator | tf.random.Generator)
        variables = [present.state] if holds_seed else variables_of(present)
        own = [variable for variable in variables or () if not self._known.intersection(identities(variable))]
        if (
            variables is None
            or len(own) != len(values)
            or any(list(variable.shape) != copies[0]["shape"] for variable, copies in zip(own, values, strict=True))
        ):
            raise NotRestorable(
                f"it had {counted(len(values), 'variable')} and is now {describe_present(present)} with {len(own)} of "
                f"them"
            )
        for variable, copies in zip(own, values, strict=True):
            assign_copies(variable, [self._read_array(copy) for copy in copies])
