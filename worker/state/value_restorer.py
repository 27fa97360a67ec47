"""Restores in another process what `plain_values` has saved of a script's values.

Plain values are replaced; containers, arrays and generators are filled in place, so that everything else that refers to
them sees the restored values. No code from the checkpoint is executed.
"""

import copy
import enum
import random
import sys
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from worker.state.found_classes import enum_class, make_dict, named_tuple_class
from worker.state.plain_values import BY_PARTS, SETS, is_torch_tensor, memory_order
from worker.state.random_generators import write_generator

_FILLED_KINDS = frozenset({"list", "dict", "deque", "bytearray", "array", "torch"})
"""What is filled in place."""
_NUMPY_BITS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")


def memory_of(tensor: Any) -> int:
    """Where the memory of a PyTorch tensor begins; 0 of one that has none of its own."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):
        return 0


class NotRestorable(Exception):
    """A saved value does not fit the object in this process; the text says which value and why."""


@dataclass(slots=True)
class RestoredPlaces:
    """What is restored already of values that were saved with the same `Places`. `shared`: what is in several places,
    by its number; `filled`: the objects of this process that were filled, by id; `others`: where the memory of PyTorch
    tensors begins that belongs to somebody else."""

    shared: dict[int, Any] = field(default_factory=dict)
    filled: dict[int, Any] = field(default_factory=dict)
    others: Collection[int] = ()

    def is_to_fill(self, present: Any) -> bool:
        """Whether nobody else has filled an object, and it is nobody else's."""
        if id(present) in self.filled:
            return False
        return not (self.others and is_torch_tensor(present) and memory_of(present) in self.others)


class ValueRestorer:
    """Restores values from the JSON and arrays of a `SavedValue`."""

    def __init__(self, arrays: Mapping[str, np.ndarray[Any, Any]], restored: RestoredPlaces | None = None) -> None:
        """`restored`: of the values with which this one was saved."""
        self._arrays = arrays
        self._before = RestoredPlaces() if restored is None else restored

    def restore_under_name(self, saved: Any, present: Any) -> Any:
        """As `restore_value`, of a value with a name of its own: it becomes one with another only if this process has
        no two objects for them, of which the script may use both."""
        if isinstance(saved, dict) and present is not None:
            shared = saved.get("shared")
            if shared is not None and self._before.shared.get(shared, present) is not present:
                saved = {name: part for name, part in saved.items() if name != "shared"}
        return self.restore_value(saved, present)

    def restore_value(self, saved: Any, present: Any) -> Any:
        """The saved value. `present`, the object of this process, is filled if possible. Raises NotRestorable."""
        if not isinstance(saved, dict):
            return saved
        shared = saved.get("shared")
        if shared is not None and shared in self._before.shared:
            return self._before.shared[shared]
        if saved["kind"] in _FILLED_KINDS:  # `[row] * 4` of the script is one row, and the saved ones may differ
            if not self._before.is_to_fill(present):
                present = None if is_torch_tensor(present) else copy.copy(present)
            self._before.filled[id(present)] = present
        value = self._restored(saved, present)
        if shared is not None:
            self._before.shared[shared] = value
        return value

    def _restored(self, saved: dict[str, Any], present: Any) -> Any:
        kind = saved["kind"]
        if kind in BY_PARTS:
            of = [saved["number"]] if "number" in saved else saved["of"]  # "number": of earlier versions
            return BY_PARTS[kind][1](*(self.restore_value(part, None) for part in of))
        if kind in ("list", "deque", "dict", *SETS):
            return self._restore_container(kind, saved, present)
        if kind in ("bytes", "bytearray", "scalar", "array", "tensor", "torch", "jax"):
            return self._restore_array(kind, saved, present)
        if kind == "integer":
            return int(saved["hex"], 16)
        if kind == "path":
            return type(present if isinstance(present, PurePath) else Path())(saved["text"])
        if kind == "enum":
            made = type(present) if isinstance(present, enum.Enum) else enum_class(saved)
            if made is None:
                return self._restore_object(kind, saved, present)
            return made(saved["value"]) if "value" in saved else made[saved["name"]]
        if kind == "numpy":
            return _restored_numpy_generator(present, saved["state"], saved["old"])
        if kind == "python":
            generator = present if isinstance(present, random.Random) else random.Random()  # noqa: S311
            write_generator(generator, saved["state"])
            return generator
        return self._restore_object(kind, saved, present)

    def _restore_object(self, kind: str, saved: dict[str, Any], present: Any) -> Any:
        raise NotRestorable(f"it was a {saved.get('class', kind)} and is now {describe_present(present)}")

    def _restore_container(self, kind: str, saved: dict[str, Any], present: Any) -> Any:
        of_class: Any = type(present)
        if saved.get("class", of_class.__qualname__) != of_class.__qualname__:
            of_class = named_tuple_class(saved) if kind == "tuple" else None
            made = make_dict(saved) if kind == "dict" else None
            if of_class is None and made is None:
                raise NotRestorable(f"it was a {saved['class']} and is now {describe_present(present)}")
            present = made
        if kind == "dict":
            before: Any = dict(present) if isinstance(present, dict) else {}
            pairs = [(self.restore_value(key, None), value) for key, value in saved["pairs"]]
            items: Any = {key: self.restore_value(value, before.get(key)) for key, value in pairs}
        else:
            before = list(present) if isinstance(present, list | tuple | deque) else []
            before += [None] * len(saved["items"])
            items = [self.restore_value(item, before[number]) for number, item in enumerate(saved["items"])]
        fields = getattr(of_class, "_fields", items)
        if "class" in saved and kind == "tuple" and len(fields) != len(items):
            raise NotRestorable(f"it was a {saved['class']} of {len(items)} values and is now one of {len(fields)}")
        if kind in SETS:
            return (of_class._make if "class" in saved else SETS[kind])(items)
        if kind == "dict" and isinstance(present, dict):
            present.clear()
            present.update(items)
        elif kind != "dict" and isinstance(present, deque if kind == "deque" else list):
            present.clear()
            present.extend(items)
        else:
            return deque(items, saved["most"]) if kind == "deque" else items
        if saved.get("attributes") and not hasattr(present, "__dict__"):
            raise NotRestorable(f"it had attributes and is now {describe_present(present)}, which has none")
        for name, attribute in saved.get("attributes", {}).items():
            vars(present)[name] = self.restore_value(attribute, vars(present).get(name))
        return present

    def _restore_array(self, kind: str, saved: dict[str, Any], present: Any) -> Any:
        if kind == "torch":
            return _filled(present, self._restored_torch_tensor(saved))
        array = self._read_array(saved)
        if kind == "bytes":
            return array.tobytes()
        if kind == "bytearray":
            return _filled_bytes(present, array.tobytes())
        if kind == "scalar":
            return array[()]
        if kind == "tensor":
            return sys.modules["tensorflow"].constant(array)
        if kind == "jax":
            return _made_for_jax(saved, array)
        if "mask" in saved:
            return self._restored_masked_array(saved, array, present)
        if isinstance(present, np.ndarray) and _is_like(present, array) and present.flags.writeable:
            np.copyto(present, array)
            return present
        copy = array.copy(order="K")
        return np.asmatrix(copy) if "matrix" in saved else copy

    def _restored_masked_array(self, saved: dict[str, Any], array: np.ndarray[Any, Any], present: Any) -> Any:
        made = np.ma.MaskedArray(
            array.copy(order="K"), self._read_array(saved["mask"]).copy(order="K"), hard_mask=saved["hard"],
            fill_value=self.restore_value(saved["fill"], None),
        )  # fmt: skip
        if type(present) is not type(made) or not _is_like(present, array):
            return made
        np.copyto(np.ma.getdata(present), array)
        present.soften_mask()
        present.mask = made.mask
        present.fill_value = made.fill_value
        if saved["hard"]:
            present.harden_mask()
        return present

    def _restored_torch_tensor(self, saved: dict[str, Any]) -> Any:
        torch = sys.modules["torch"]
        bits = torch.from_numpy(self._arrays[saved["array"]].copy())
        tensor = bits.view(getattr(torch, saved["torch"])).reshape(saved["shape"])
        if "axes" in saved:
            there, back = _axes_to_memory(saved)
            tensor = tensor.permute(there).contiguous().permute(back)
        try:
            return tensor.to(saved["device"])
        except RuntimeError:  # this host has no such device
            return tensor

    def _read_array(self, saved: dict[str, Any]) -> np.ndarray[Any, Any]:
        try:
            kind = np.dtype(saved["dtype"])
        except TypeError:
            kind = np.dtype(sys.modules["tensorflow"].as_dtype(saved["dtype"]).as_numpy_dtype)
        array = np.frombuffer(self._arrays[saved["array"]].tobytes(), kind).reshape(saved["shape"])
        if "axes" not in saved:
            return array
        there, back = _axes_to_memory(saved)
        return np.ascontiguousarray(array.transpose(there)).transpose(back)


def _made_for_jax(saved: dict[str, Any], array: np.ndarray[Any, Any]) -> Any:
    jax = sys.modules["jax"]
    if "key" in saved:
        return jax.random.wrap_key_data(jax.numpy.asarray(array), impl=saved["key"])
    return jax.numpy.asarray(array.item() if "weak" in saved else array)


def _axes_to_memory(saved: dict[str, Any]) -> tuple[list[int], list[int]]:
    """How the axes of an array are permuted to lie in memory as the saved one did, and how they are put back."""
    there = [axis for axis in range(len(saved["shape"])) if axis not in saved["axes"]] + saved["axes"]
    return there, sorted(range(len(there)), key=there.__getitem__)


def _is_like(present: Any, array: np.ndarray[Any, Any]) -> bool:
    """Whether an array can hold another's values as that does."""
    return (present.shape, present.dtype) == (array.shape, array.dtype) and memory_order(
        present.shape, present.strides
    ) == memory_order(array.shape, array.strides)


def _filled(present: Any, tensor: Any) -> Any:
    """`present` with the values of a PyTorch tensor, if it is one of the same kind and writable; else `tensor`."""
    if not is_torch_tensor(present) or (present.shape, present.dtype, present.device) != (
        tensor.shape,
        tensor.dtype,
        tensor.device,
    ):
        return tensor
    if memory_order(present.shape, present.stride()) != memory_order(tensor.shape, tensor.stride()):
        return tensor
    try:
        present.detach().copy_(tensor)
    except RuntimeError:  # several of its entries share their memory, or it belongs to an inference
        return tensor
    return present


def _filled_bytes(present: Any, content: bytes) -> bytearray:
    """`present` with this content, if it is a bytearray that can become as long; else a new one."""
    if not isinstance(present, bytearray):
        return bytearray(content)
    try:
        present[:] = content
    except BufferError:  # something views its memory
        return bytearray(content)
    return present


def describe_present(present: Any) -> str:
    """What an object of this process is, in words."""
    return "nothing" if present is None else f"a {type(present).__name__}"


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
        raise NotRestorable(f"it was a NumPy generator of {state['bit_generator']}, which the script has to create")
    write_generator(generator, state)
    return generator
