"""The state of a sampler and of what it is made of, as plain values: attributes, generators, samplers inside it.

An order can be drawn again only from the state in which it was drawn. What is no plain value (a dataset, a function, an
iterator) is left as it is; whether anything of it mattered shows when an order is drawn twice (`drawn_order`).
"""

import itertools
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import xxhash

from worker.checks.reachability import MAX_ENTRIES, is_script_class
from worker.state.plain_values import NotSaveable, SavedValue
from worker.state.value_restorer import ValueRestorer

MAX_STATE_BYTES = 64 << 20  # in every checkpoint, twice
_LARGE_BYTES = 1 << 20  # of an array that is saved only if it has changed: most are indices and weights that never do
_MANY = 1000  # numbers in a list that are saved as an array
_SAME = {"kind": "same"}


class SavedSampler(SavedValue):
    """The state of a sampler as JSON (`json`) and arrays (`arrays`).

    `large`: digests of its large arrays, by place; those that `unchanged` has are left out.
    """

    def __init__(
        self,
        sampler: Any,
        dataset: Any,
        unchanged: Mapping[str, bytes] | None = None,
        *,
        follows_datasets: bool = False,
    ) -> None:
        self.large: dict[str, bytes] = {}
        self._not_followed = (type,) if follows_datasets else (type, torch.utils.data.Dataset)
        self._dataset = dataset
        self._unchanged = unchanged or {}
        super().__init__(sampler)

    @property
    def size_bytes(self) -> int:
        """How much the arrays take."""
        return sum(array.nbytes for array in self.arrays.values())

    def to_state(self) -> dict[str, Any]:
        """What torch.save writes."""
        return {"json": self.json, "arrays": {name: torch.from_numpy(np.array(array)) for name, array in
                                              self.arrays.items()}}  # fmt: skip

    def _save_container(self, value: Any, path: str) -> Any:
        if type(value) in (list, tuple) and len(value) > _MANY:
            if all(type(entry) is int for entry in value):
                stored = self._store_large(np.array(value), path)
                return stored and {"kind": "numbers", "tuple": type(value) is tuple, **stored}
            if all(type(entry) is list and all(type(index) is int for index in entry) for entry in value):
                flat = list(itertools.chain.from_iterable(value))
                stored, sizes = np.array(flat), np.array([len(entry) for entry in value])
                return {
                    "kind": "groups",
                    "numbers": self._store_array(stored, f"{path}.numbers"),
                    "sizes": self._store_array(sizes, f"{path}.sizes"),
                }
        if isinstance(value, list | tuple | dict | set | frozenset | deque) and len(value) > MAX_ENTRIES:
            return _SAME  # data
        return super()._save_container(value, path)

    def _save_array(self, value: Any, path: str) -> Any:
        before = set(self.arrays)
        saved = super()._save_array(value, path)
        for name in set(self.arrays) - before:
            if not self._notice_large(self.arrays[name], path):
                del self.arrays[name]
                return _SAME
        return saved

    def _store_large(self, array: np.ndarray[Any, Any], path: str) -> Any:
        stored = self._store_array(array, path)
        if self._notice_large(array, path):
            return stored
        del self.arrays[stored["array"]]
        return None

    def _notice_large(self, array: np.ndarray[Any, Any], path: str) -> bool:
        """Whether an array has to be saved."""
        if array.nbytes <= _LARGE_BYTES:
            return True
        self.large[path] = xxhash.xxh3_128(np.ascontiguousarray(array).data).digest()
        return self._unchanged.get(path) != self.large[path]

    def _save_object(self, value: Any, path: str) -> Any:
        if isinstance(value, torch.Generator):
            return {"kind": "generator", **self._store_array(value.get_state().numpy(), path)}
        if isinstance(value, self._not_followed):
            return _SAME
        if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
            return {"kind": "state_dict", "value": self._save_value(value.state_dict(), f"{path}.state_dict()")}
        kinds = torch.utils.data.Sampler, torch.utils.data.Dataset
        if isinstance(value, kinds) or is_script_class(type(value)):
            attributes = dict(getattr(value, "__dict__", {}))
            return {
                "kind": "object",
                "attributes": {
                    name: self._save_attribute(attribute, f"{path}.{name}") for name, attribute in attributes.items()
                },
            }
        return _SAME

    def _save_attribute(self, value: Any, path: str) -> Any:
        if value is self._dataset:
            return _SAME
        try:
            return self._save_value(value, path)
        except NotSaveable:
            return _SAME


class SamplerRestorer(ValueRestorer):
    """Puts the state of a `SavedSampler` into the sampler of this process."""

    @classmethod
    def restore(cls, state: Mapping[str, Any], sampler: Any) -> None:
        """Raises NotRestorable, saying what does not fit."""
        arrays = {name: tensor.numpy() for name, tensor in state["arrays"].items()}
        cls(arrays).restore_value(state["json"], sampler)

    def _restore_object(self, kind: str, saved: dict[str, Any], present: Any) -> Any:
        if kind == "generator":
            generator = present if isinstance(present, torch.Generator) else torch.Generator()
            generator.set_state(torch.from_numpy(self._read_array(saved).copy()))
            return generator
        if kind == "numbers":
            numbers = self._read_array(saved).tolist()
            if saved["tuple"] or not isinstance(present, list):
                return tuple(numbers) if saved["tuple"] else numbers
            present[:] = numbers
        elif kind == "groups":
            numbers, sizes = self._read_array(saved["numbers"]).tolist(), self._read_array(saved["sizes"]).tolist()
            ends = list(itertools.accumulate(sizes))
            groups = [numbers[end - size : end] for end, size in zip(ends, sizes, strict=True)]
            if not isinstance(present, list):
                return groups
            present[:] = groups
        elif kind == "state_dict" and hasattr(present, "load_state_dict"):
            present.load_state_dict(self.restore_value(saved["value"], None))
        elif kind == "object" and present is not None:
            for name, value in saved["attributes"].items():
                if value != _SAME:
                    setattr(present, name, self.restore_value(value, getattr(present, name, None)))
        elif kind not in ("same", "object"):
            return super()._restore_object(kind, saved, present)
        return present
