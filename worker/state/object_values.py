"""Saves the values that Python objects hold as JSON and arrays, and restores them into the objects of another process.

Plain values are replaced. Containers, arrays, variables, generators and objects of the script's classes are filled in
place, so that everything else that refers to them sees the restored values. Restoring executes no code from the
checkpoint.
"""

import enum
import functools
import io
import json
import logging
import random
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import tensorflow as tf
import xxhash

from supervisor.protocol.plurals import counted
from worker.state.random_generators import read_generator, write_generator
from worker.state.reachability import LIBRARIES
from worker.state.replica_values import assign_copies, replica_copies

_PLAIN = (bool, int, float, str, type(None))
_SETS: dict[str, Callable[[Iterable[Any]], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_NUMPY_BITS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
_STATELESS = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, type, functools.partial,
    logging.Logger, io.IOBase, threading.Thread, type(threading.Lock()), type(threading.RLock()), threading.Event,
    tf.distribute.Strategy, tf.data.Dataset, tf.summary.SummaryWriter, tf.keras.losses.Loss,
    tf.types.experimental.PolymorphicFunction,
)  # fmt: skip
"""Objects that each process makes for itself and that hold no state a checkpoint could keep."""


class NotSaveable(Exception):
    """A value can't be saved; the text names it and its type."""


class NotRestorable(Exception):
    """A saved value does not fit the object in this process; the text says which value and why."""


class SavedObject:
    """One value as JSON (`json`) and arrays (`arrays`, by the names that the JSON gives them).

    `live`: the variables and generators whose state it contains. Raises NotSaveable.
    """

    def __init__(self, value: Any, known: frozenset[int] = frozenset()) -> None:
        """`known`: ids of variables and other objects that are saved elsewhere or need not be saved."""
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        self.live: list[Any] = []
        self._known = known
        self._inside: list[int] = []
        self.json = self._save_value(value, "")

    def digest(self) -> bytes:
        """A hash that changes when the value does."""
        hashed = xxhash.xxh3_128(json.dumps(self.json).encode())
        for array in self.arrays.values():
            hashed.update(array.data)
        return hashed.digest()

    def _save_value(self, value: Any, path: str) -> Any:
        if type(value) in _PLAIN:
            return value
        if id(value) in self._known or (isinstance(value, _STATELESS) and not _holds_variables(value)):
            return {"kind": "same", "class": type(value).__qualname__}
        if id(value) in self._inside:
            raise NotSaveable(f"{path} (contains itself)")
        self._inside.append(id(value))
        try:
            return self._save_container(value, path) or self._save_array(value, path) or self._save_object(value, path)
        finally:
            self._inside.pop()

    def _save_container(self, value: Any, path: str) -> Any:
        if isinstance(value, Mapping) and isinstance(value, dict):
            entries = list(value.items())
            pairs = [[self._save_value(key, path), self._save_value(each, f"{path}[{key!r}]")] for key, each in entries]
            return {"kind": "dict", "pairs": pairs, **_subclass_entry(value, dict)}
        if isinstance(value, deque):
            items = self._save_items(value, path)
            return {"kind": "deque", "items": items, "most": value.maxlen, **_subclass_entry(value, deque)}
        if isinstance(value, list):
            return {"kind": "list", "items": self._save_items(value, path), **_subclass_entry(value, list)}
        for kind, made in _SETS.items():
            if type(value) is made:
                return {"kind": kind, "items": self._save_items(value, path)}
        if isinstance(value, enum.Enum):
            return {"kind": "enum", "name": value.name}
        return {"kind": "path", "text": str(value)} if isinstance(value, PurePath) else None

    def _save_items(self, values: Iterable[Any], path: str) -> list[Any]:
        copied = list(
            values
        )  # another thread may change it meanwhile; dicts and attributes are copied for the same reason
        return [self._save_value(each, f"{path}[{number}]") for number, each in enumerate(copied)]

    def _save_array(self, value: Any, path: str) -> Any:
        if isinstance(value, bytes):
            return {"kind": "bytes", **self._store_array(np.frombuffer(value, np.uint8), path)}
        if isinstance(value, np.generic):
            return {"kind": "scalar", **self._store_array(np.asarray(value), path)}
        if isinstance(value, np.ndarray):
            return {"kind": "array", **self._store_array(value, path)}
        if isinstance(value, tf.Tensor) and hasattr(value, "numpy"):
            return {"kind": "tensor", **self._store_array(np.asarray(value.numpy()), path)}
        return None

    def _store_array(self, array: np.ndarray[Any, Any], path: str) -> dict[str, Any]:
        if array.dtype.hasobject:
            raise NotSaveable(f"{path} (an array of objects)")
        if array.dtype.type is np.void:
            raise NotSaveable(f"{path} (an array of {array.dtype})")
        name = str(len(self.arrays))
        self.arrays[name] = np.frombuffer(array.tobytes(), np.uint8)  # .npz has no form for bfloat16 and similar types
        return {"array": name, "dtype": array.dtype.name if array.dtype.kind == "V" else array.dtype.str,
                "shape": list(array.shape)}  # fmt: skip

    def _save_object(self, value: Any, path: str) -> Any:
        if isinstance(value, tf.keras.random.SeedGenerator | tf.random.Generator):
            return {"kind": "variables", "values": self._save_variables([value.state], value, path)}
        if isinstance(value, np.random.Generator | np.random.RandomState):
            self.live.append(value)
            old = isinstance(value, np.random.RandomState)
            return {"kind": "numpy", "state": read_generator(value), "old": old}
        if isinstance(value, random.Random):
            self.live.append(value)
            return {"kind": "python", "state": read_generator(value)}
        variables = variables_of(value)
        if variables is not None:
            return {"kind": "variables", "values": self._save_variables(variables, value, path)}
        if type(value).__module__.partition(".")[0] in LIBRARIES or not hasattr(value, "__dict__"):
            raise NotSaveable(f"{path} (a {type(value).__name__})")
        attributes = list(vars(value).items())
        return {
            "kind": "object",
            "class": type(value).__qualname__,
            "attributes": {name: self._save_value(each, f"{path}.{name}") for name, each in attributes},
        }

    def _save_variables(self, variables: list[Any], holder: Any, path: str) -> list[Any]:
        own = [each for each in variables if not self._known.intersection(identities(each))]
        self.live.extend([holder, *own])
        return [[self._store_array(np.asarray(copy.numpy()), path) for copy in replica_copies(each)] for each in own]


def _subclass_entry(value: Any, plain: type) -> dict[str, str]:
    """The class of a container that is not the plain type: only the script can create one."""
    return {} if type(value) is plain else {"class": type(value).__qualname__}


def variables_of(value: Any) -> list[Any] | None:
    """The variable itself, or the variables of a layer, metric, optimizer or module in their order; else None."""
    if isinstance(value, tf.Variable | tf.keras.Variable):
        return [value]
    if isinstance(value, tf.keras.layers.Layer | tf.keras.optimizers.Optimizer | tf.keras.Metric | tf.Module):
        return list(value.variables)
    return None


def identities(found: Any) -> set[int]:
    """The ids under which one variable may appear: Keras' wrapper, TensorFlow's variable in it, each replica's part."""
    if isinstance(found, tf.keras.random.SeedGenerator):
        found = found.state
    inner = found.value if isinstance(found, tf.keras.Variable) else found
    parts = getattr(inner, "values", ()) if isinstance(inner, tf.Variable) else ()
    return {id(found), id(inner), *map(id, parts)}


class ObjectRestorer:
    """Restores values from the JSON and arrays of a `SavedObject`."""

    def __init__(self, arrays: Mapping[str, np.ndarray[Any, Any]], known: frozenset[int] = frozenset()) -> None:
        self._arrays = arrays
        self._known = known

    def restore_value(self, saved: Any, present: Any) -> Any:
        """The saved value. `present`, the object of this process, is filled if possible. Raises NotRestorable."""
        if not isinstance(saved, dict):
            return saved
        kind = saved["kind"]
        if kind == "same":
            if present is None:
                raise NotRestorable(f"it was a {saved.get('class', 'object')}, which only this process can create")
            return present
        if kind in ("list", "deque", "dict", *_SETS):
            return self._restore_container(kind, saved, present)
        if kind in ("bytes", "scalar", "array", "tensor"):
            return self._restore_array(kind, saved, present)
        if kind == "path":
            return type(present if isinstance(present, PurePath) else Path())(saved["text"])
        if kind == "enum" and isinstance(present, enum.Enum):
            return type(present)[saved["name"]]
        return self._restore_object(kind, saved, present)

    def _restore_container(self, kind: str, saved: dict[str, Any], present: Any) -> Any:
        if saved.get("class", type(present).__qualname__) != type(present).__qualname__:
            raise NotRestorable(f"it was a {saved['class']} and is now {_describe(present)}")
        if kind == "dict":
            before: Any = dict(present) if isinstance(present, dict) else {}
            pairs = [(self.restore_value(key, None), value) for key, value in saved["pairs"]]
            items: Any = {key: self.restore_value(value, before.get(key)) for key, value in pairs}
        else:
            before = list(present) if isinstance(present, list | tuple | deque) else []
            before += [None] * len(saved["items"])
            items = [self.restore_value(each, before[number]) for number, each in enumerate(saved["items"])]
        if kind in _SETS:
            return _SETS[kind](items)
        if kind == "dict" and isinstance(present, dict):
            present.clear()
            present.update(items)
        elif kind != "dict" and isinstance(present, deque if kind == "deque" else list):
            present.clear()
            present.extend(items)
        else:
            return deque(items, saved["most"]) if kind == "deque" else items
        return present

    def _restore_array(self, kind: str, saved: dict[str, Any], present: Any) -> Any:
        array = self._read_array(saved)
        if kind == "bytes":
            return array.tobytes()
        if kind == "scalar":
            return array[()]
        if kind == "tensor":
            return tf.constant(array)
        fits = isinstance(present, np.ndarray) and (present.shape, present.dtype) == (array.shape, array.dtype)
        if fits and present.flags.writeable:
            np.copyto(present, array)
            return present
        return array.copy()

    def _read_array(self, saved: dict[str, Any]) -> np.ndarray[Any, Any]:
        try:
            kind = np.dtype(saved["dtype"])
        except TypeError:
            kind = np.dtype(tf.as_dtype(saved["dtype"]).as_numpy_dtype)
        return np.frombuffer(self._arrays[saved["array"]].tobytes(), kind).reshape(saved["shape"])

    def _restore_object(self, kind: str, saved: dict[str, Any], present: Any) -> Any:
        if kind == "numpy":
            return _restored_numpy_generator(present, saved["state"], saved["old"])
        if kind == "python":
            generator = present if isinstance(present, random.Random) else random.Random()  # noqa: S311
            write_generator(generator, saved["state"])
            return generator
        if kind == "variables":
            self._restore_variables(saved["values"], present)
            return present
        if kind == "object" and type(present).__qualname__ == saved["class"] and hasattr(present, "__dict__"):
            for name, each in saved["attributes"].items():
                # not setattr, which the class may refuse
                vars(present)[name] = self.restore_value(each, vars(present).get(name))
            return present
        raise NotRestorable(f"it was a {saved.get('class', kind)} and is now {_describe(present)}")

    def _restore_variables(self, values: list[Any], present: Any) -> None:
        holds_seed = isinstance(present, tf.keras.random.SeedGenerator | tf.random.Generator)
        variables = [present.state] if holds_seed else variables_of(present)
        own = [each for each in variables or () if not self._known.intersection(identities(each))]
        if (
            variables is None
            or len(own) != len(values)
            or any(list(each.shape) != copies[0]["shape"] for each, copies in zip(own, values, strict=True))
        ):
            raise NotRestorable(
                f"it had {counted(len(values), 'variable')} and is now {_describe(present)} with {len(own)} of them"
            )
        for variable, copies in zip(own, values, strict=True):
            assign_copies(variable, [self._read_array(each) for each in copies])


def _describe(present: Any) -> str:
    return "nothing" if present is None else f"a {type(present).__name__}"


def _holds_variables(value: Any) -> bool:
    return isinstance(value, tf.Module | tf.keras.layers.Layer)


def _restored_numpy_generator(present: Any, state: Any, is_random_state: bool) -> Any:
    """The present generator, or a new one of the saved kind, with the saved state."""
    generator: np.random.RandomState | np.random.Generator
    if is_random_state:
        generator = present if isinstance(present, np.random.RandomState) else np.random.RandomState()
    elif isinstance(present, np.random.Generator):
        generator = present
    elif state["bit_generator"] in _NUMPY_BITS:
        generator = np.random.Generator(getattr(np.random, state["bit_generator"])())
    else:
        raise NotRestorable(f"it was a NumPy generator of {state['bit_generator']}, which the callback has to create")
    write_generator(generator, state)
    return generator
