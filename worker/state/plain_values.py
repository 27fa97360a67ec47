"""Saves plain values, containers, arrays and generators as JSON and arrays, for `value_restorer`.

Imports no framework.
"""

import contextlib
import enum
import json
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from typing import Any
from uuid import UUID

import numpy as np
import xxhash

from worker.state.found_classes import describe_class
from worker.state.random_generators import read_generator

LIBRARIES = sys.stdlib_module_names | {"tensorflow", "keras", "torch", "numpy", "worker", "supervisor", "_pytest"}
"""Packages whose objects are not searched for state, unless they are of a kind that is handled by name. Any fixture of
pytest leads to all tests of its session, which took seconds to search in each test that trains."""
PLAIN = (bool, int, float, str, type(None))
_DECIMAL_BITS = 8192  # of an integer in JSON: Python refuses to print or read more than 4,300 decimal digits
SETS: dict[str, Callable[[Iterable[Any]], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_ISO = (datetime, date, time)
_SEQUENCES = ("list", "tuple", "deque")
BY_PARTS: dict[str, tuple[Callable[[Any], Iterable[Any]], Callable[..., Any]]] = {
    "complex": (lambda number: [str(number)], complex),
    "Decimal": (lambda number: [str(number)], Decimal),
    "Fraction": (Fraction.as_integer_ratio, Fraction),
    "UUID": (lambda number: [str(number)], UUID),
    "timedelta": (lambda span: [span.days, span.seconds, span.microseconds], timedelta),
    **{kind.__name__: (lambda moment: [moment.isoformat()], kind.fromisoformat) for kind in _ISO},
    **{kind.__name__: (lambda of: [of.start, of.stop, of.step], kind) for kind in (range, slice)},
}
"""Of values that nothing can change: by the name of their class, their plain parts, and what makes them of these."""
_SHAREABLE = frozenset({"list", "dict", "deque", "set", "bytearray", "array", "torch", "numpy", "python"})
"""What may change in place, so that two places with one object are not the same as two with equal ones."""
_WITH_PARTS = (complex, Decimal, Fraction, UUID, timedelta, *_ISO, range, slice)


class NotSaveable(Exception):
    """A value can't be saved; the text names it and its type."""


class Places:
    """Where values have one object in several places, as `[row] * 4` has: their JSON there gets one number. One for
    each value, or for values that are restored together."""

    def __init__(self) -> None:
        self._first: dict[int, tuple[Any, dict[str, Any]]] = {}  # by id; alive, so that no id is used twice
        self._shared = 0

    def add(self, value: Any, saved: dict[str, Any]) -> None:
        """That `saved` is the JSON of an object that may change in place."""
        if id(value) not in self._first:
            self._first[id(value)] = value, saved
            return
        _, first = self._first[id(value)]
        if "shared" not in first:
            first["shared"] = self._shared
            self._shared += 1
        saved["shared"] = first["shared"]


class SavedValue:
    """One value as JSON (`json`) and arrays (`arrays`, by the names that the JSON gives them). Raises NotSaveable."""

    def __init__(self, value: Any, places: Places | None = None) -> None:
        """`places`: of the values with which it is restored."""
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        self._inside: list[int] = []
        self._places = Places() if places is None else places
        self.json = self._save_value(value, "")

    def digest(self) -> bytes:
        """A hash that changes when the value does."""
        hashed = xxhash.xxh3_128(json.dumps(self.json).encode())
        for array in self.arrays.values():
            hashed.update(array.data)
        return hashed.digest()

    def _save_value(self, value: Any, path: str) -> Any:
        if type(value) is int and value.bit_length() > _DECIMAL_BITS:
            return {"kind": "integer", "hex": hex(value)}
        if type(value) in PLAIN:
            return value
        if type(value) in _WITH_PARTS:
            return self._save_parts(value, path)
        if id(value) in self._inside:
            raise NotSaveable(f"{path} (contains itself)")
        self._inside.append(id(value))
        try:
            saved = (
                self._save_container(value, path)
                or self._save_array(value, path)
                or self._save_generator(value)
                or self._save_object(value, path)
            )
        finally:
            self._inside.pop()
        if saved["kind"] in _SHAREABLE:
            self._places.add(value, saved)
        return saved

    def _save_parts(self, value: Any, path: str) -> dict[str, Any]:
        kind = type(value).__name__
        parts, make = BY_PARTS[kind]
        of = list(parts(value))
        if type(value) in _ISO and repr(make(*of)) != repr(value):  # a time zone that only the script can make
            raise NotSaveable(f"{path} ({value!r})")
        return {"kind": kind, "of": [self._save_value(part, path) for part in of]}

    def _save_container(self, value: Any, path: str) -> Any:
        if isinstance(value, Mapping) and isinstance(value, dict):
            entries = list(value.items())
            pairs = [
                [self._save_value(key, path), self._save_value(entry, f"{path}[{key!r}]")] for key, entry in entries
            ]
            return {"kind": "dict", "pairs": pairs, **self._subclass_entry(value, dict, path)}
        if isinstance(value, deque):
            items = self._save_items(value, path)
            return {"kind": "deque", "items": items, "most": value.maxlen, **self._subclass_entry(value, deque, path)}
        if isinstance(value, list):
            items = self._save_items(value, path)
            return {"kind": "list", "items": items, **self._subclass_entry(value, list, path)}
        for kind, made in SETS.items():
            if type(value) is made:
                return {"kind": kind, "items": self._save_items(value, path)}
        if isinstance(value, tuple) and hasattr(value, "_make"):
            return {"kind": "tuple", "items": self._save_items(value, path), **describe_class(value)}
        if isinstance(value, enum.Enum):
            # a combination of flags has no name of its own
            number = {} if value.name in type(value).__members__ else {"value": value.value}
            return {"kind": "enum", "name": value.name, **number, **describe_class(value)}
        return {"kind": "path", "text": str(value)} if isinstance(value, PurePath) else None

    def _subclass_entry(self, value: Any, plain: type, path: str) -> dict[str, Any]:
        """The class of a container that is not the plain type, with what the object has besides its entries."""
        if type(value) is plain:
            return {}
        saved = {}
        for name, attribute in own_attributes(value).items():
            with contextlib.suppress(NotSaveable):  # what a restart makes as the script does
                saved[name] = self._save_value(attribute, f"{path}.{name}")
        return {**describe_class(value), **({"attributes": saved} if saved else {})}

    def _save_items(self, values: Iterable[Any], path: str) -> list[Any]:
        # a copy, as another thread may change it meanwhile; dicts and attributes are copied for the same reason
        return [self._save_value(value, f"{path}[{number}]") for number, value in enumerate(list(values))]

    def _save_array(self, value: Any, path: str) -> Any:
        if isinstance(value, bytes | bytearray):
            kind = "bytes" if isinstance(value, bytes) else "bytearray"
            return {"kind": kind, **self._store_array(np.frombuffer(bytes(value), np.uint8), path)}
        if isinstance(value, np.generic):
            return {"kind": "scalar", **self._store_array(np.asarray(value), path)}
        if isinstance(value, np.ndarray):
            return {"kind": "array", **self._array_class(value, path), **self._store_array(value, path)}
        if is_tensorflow_tensor(value) and hasattr(value, "numpy"):
            return {"kind": "tensor", **self._store_array(np.asarray(value.numpy()), path)}
        if is_torch_tensor(value):
            return self._save_torch_tensor(value, path)
        return self._save_jax_array(value, path) if is_jax_array(value) else None

    def _array_class(self, array: np.ndarray[Any, Any], path: str) -> dict[str, Any]:
        """What an array has besides its content: the mask of a masked one, the class of a matrix."""
        if type(array) is np.ma.MaskedArray:
            fill = self._save_value(array.fill_value, path)
            return {"mask": self._store_array(np.ma.getmaskarray(array), path), "fill": fill, "hard": array.hardmask}
        if type(array) not in (np.ndarray, np.memmap, np.matrix):
            raise NotSaveable(f"{path} (a {type(array).__name__}, which may have more than its elements)")
        return {"matrix": True} if type(array) is np.matrix else {}

    def _save_torch_tensor(self, tensor: Any, path: str) -> dict[str, Any]:
        torch = sys.modules["torch"]
        held = tensor.detach().cpu().contiguous()
        if held.is_sparse or held.is_quantized:
            raise NotSaveable(f"{path} (a sparse or quantized tensor)")
        axes = _axes_entry(tensor.shape, tensor.stride())
        stored = self._store_array(held.reshape(-1).view(torch.uint8).numpy(), path)
        kind = {"torch": str(held.dtype).removeprefix("torch."), "device": str(tensor.device)}
        return {"kind": "torch", **stored, **kind, "shape": list(held.shape), **axes}

    def _save_jax_array(self, array: Any, path: str) -> dict[str, Any]:
        jax = sys.modules["jax"]
        # made of a number of Python's, it takes the type of what it is added to
        is_weak = getattr(array, "weak_type", False)
        is_traced = isinstance(array, jax.core.Tracer)
        if is_traced or len(array.devices()) > 1 or (is_weak and array.shape):
            raise NotSaveable(f"{path} (a traced array of JAX, one on several devices, or one with a weak type)")
        if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
            held = self._store_array(np.asarray(jax.random.key_data(array)), path)
            return {"kind": "jax", "key": str(jax.random.key_impl(array)), **held}
        return {"kind": "jax", **({"weak": True} if is_weak else {}), **self._store_array(np.asarray(array), path)}

    def _store_array(self, array: np.ndarray[Any, Any], path: str) -> dict[str, Any]:
        if array.dtype.hasobject:
            raise NotSaveable(f"{path} (an array of objects)")
        if array.dtype.type is np.void:
            raise NotSaveable(f"{path} (an array of {array.dtype})")
        name = str(len(self.arrays))
        content = np.ma.getdata(array).tobytes()
        self.arrays[name] = np.frombuffer(content, np.uint8)  # .npz has no form for bfloat16 and similar types
        return {"array": name, "dtype": array.dtype.name if array.dtype.kind == "V" else array.dtype.str,
                "shape": list(array.shape), **_axes_entry(array.shape, array.strides)}  # fmt: skip

    def _save_generator(self, value: Any) -> Any:
        if isinstance(value, np.random.Generator | np.random.RandomState):
            return {
                "kind": "numpy", "state": read_generator(value), "old": isinstance(value, np.random.RandomState)
            }  # fmt: skip
        return {"kind": "python", "state": read_generator(value)} if isinstance(value, random.Random) else None

    def _save_object(self, value: Any, path: str) -> Any:
        raise NotSaveable(f"{path} (a {type(value).__name__})")


def memory_order(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """The axes of an array that are longer than 1, that of the largest step in memory first: [0, 1] of a matrix in C's
    order, [1, 0] in Fortran's. Libraries add in another order in each, so the last bit of a sum depends on it."""
    return sorted((axis for axis, size in enumerate(shape) if size > 1), key=lambda axis: -abs(strides[axis]))


def _axes_entry(shape: Sequence[int], strides: Sequence[int]) -> dict[str, Any]:
    """What the JSON of an array has if it does not lie in memory in C's order; its content is saved in that."""
    axes = memory_order(shape, strides)
    return {} if axes == sorted(axes) else {"axes": axes}


def class_module(kind: type) -> str:
    """The module of a class; empty where a class hides it behind a descriptor, as that of Cython's functions does."""
    name: object = kind.__module__
    return name if isinstance(name, str) else ""


def is_tensorflow_tensor(value: Any) -> bool:
    """Whether it is a tf.Tensor, if TensorFlow was imported at all."""
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and isinstance(value, getattr(tensorflow, "Tensor", ()))


def is_torch_tensor(value: Any) -> bool:
    """Whether it is a torch.Tensor, if PyTorch was imported at all."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def is_jax_array(value: Any) -> bool:
    """Whether it is a jax.Array, if JAX was imported at all."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, getattr(jax, "Array", ()))


def own_attributes(container: Any) -> dict[str, Any]:
    """What an object that is a list, a deque or a dictionary has besides its entries, by name."""
    attributes = getattr(container, "__dict__", None)
    return {} if attributes is None or attributes is container else dict(attributes)  # `self.__dict__ = self`


def require_initial(saved: Any, initial: Any, path: str = "") -> None:
    """Raises NotSaveable if a value holds something that only the script can make, and its initial value has no such
    thing in the same place: no restart could restore it. Both as in `SavedValue.json`.
    """
    if not isinstance(saved, dict):
        return
    there = initial if isinstance(initial, dict) and initial["kind"] == saved["kind"] else {}
    needs_one = "class" in saved and "module" not in saved
    if needs_one and not (there and there.get("class") == saved["class"]):
        raise NotSaveable(
            f"{path} (only the script can make a {saved['class']}, and the initial value has none in this place)"
        )
    if "pairs" in saved:
        before = {repr(key): value for key, value in there.get("pairs", ())}
        for key, value in saved["pairs"]:
            require_initial(key, None, path)
            require_initial(value, before.get(repr(key)), f"{path}[{key!r}]")
    elif "items" in saved:
        items = initial["items"] if isinstance(initial, dict) and initial["kind"] in _SEQUENCES else ()
        for number, item in enumerate(saved["items"]):
            if isinstance(item, dict):
                require_initial(item, items[number] if number < len(items) else None, f"{path}[{number}]")
