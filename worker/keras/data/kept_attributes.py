"""The attributes of a `keras.utils.PyDataset`, which its `on_epoch_begin` and `on_epoch_end`, or callbacks, may change.

Of one without such methods only numbers and texts are looked at: others, which nothing changes, may be large.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import xxhash

from worker.state.object_values import NotRestorable, NotSaveable, ObjectRestorer, SavedObject
from worker.state.plain_values import PLAIN, require_initial

_SET_BY_KERAS = ("_workers", "_use_multiprocessing", "_max_queue_size")
_HOOKS = ("on_epoch_begin", "on_epoch_end")

_NOT_SAVED = (NotSaveable, AttributeError, LookupError, RuntimeError, TypeError, ValueError)

Arrays = Mapping[str, np.ndarray[Any, Any]]


class KeptAttributes:
    """Those that have changed since training began, as they were between two epochs (`kept`: JSON and arrays)."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._changes = any(
            getattr(type(dataset), name) is not getattr(tf.keras.utils.PyDataset, name) for name in _HOOKS
        )
        self._fresh = self._digests_of(self._kept_attributes())
        self._initial = {name: _form(value) for name, value in self._kept_attributes().items()}
        self.kept: tuple[Mapping[str, Any], Arrays] = {}, {}
        self.not_saved: tuple[str, ...] = ()
        """Names of those that have changed and could not be restored."""

    def unsaveable(self) -> dict[str, Any]:
        """Those that can't be saved, such as an iterator, by the name of the class and their own."""
        kind = type(self._dataset).__name__
        return {f"{kind}.{name}": value for name, value in self._attributes().items() if _digest(value) is None}

    def digests(self) -> dict[str, bytes | None]:
        """A hash of each attribute; None if it can't be saved."""
        return self._digests_of(self._attributes())

    def keep(self) -> None:
        """Keeps them as they are now, between two epochs."""
        saved: dict[str, Any] = {}
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        not_saved: list[str] = []
        for name, value in self._kept_attributes().items():
            digest = _digest(value)
            if digest is None or self._fresh.get(name) == digest:
                continue
            saved_object = SavedObject(value)
            try:
                require_initial(saved_object.json, self._initial.get(name))
            except NotSaveable as error:
                not_saved.append(f"{type(self._dataset).__name__}.{name}{error}")
                continue
            saved[name] = saved_object.json
            arrays |= {f"{name}/{key}": array for key, array in saved_object.arrays.items()}
        self.kept, self.not_saved = (saved, arrays), tuple(not_saved)

    def restore(self, saved: Mapping[str, Any], arrays: Arrays) -> tuple[str, ...]:
        """Sets attributes that were kept. Returns a text for each that could not be restored."""
        self.kept = saved, arrays
        lost: list[str] = []
        for name, value in saved.items():
            own = {key.removeprefix(f"{name}/"): array for key, array in arrays.items() if key.startswith(f"{name}/")}
            try:
                vars(self._dataset)[name] = ObjectRestorer(own).restore_value(value, vars(self._dataset).get(name))
            except NotRestorable as error:
                lost.append(f"{type(self._dataset).__name__}.{name}: {error}")
        return tuple(lost)

    def _kept_attributes(self) -> dict[str, Any]:
        attributes = self._attributes()
        if self._changes:
            return attributes
        return {name: value for name, value in attributes.items() if isinstance(value, PLAIN)}

    def _digests_of(self, attributes: Mapping[str, Any]) -> dict[str, bytes | None]:
        return {name: _digest(value) for name, value in attributes.items()}

    def _attributes(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self._dataset).items() if name not in _SET_BY_KERAS}


def _form(value: Any) -> Any:
    """A value as JSON, without its arrays; None if it is an array or can't be saved."""
    if isinstance(value, np.ndarray):
        return None
    try:
        return SavedObject(value).json
    except _NOT_SAVED:
        return None


def _digest(value: Any) -> bytes | None:
    """A hash of a value; None if it can't be saved. Large arrays are hashed where they are."""
    if isinstance(value, np.ndarray) and value.flags.c_contiguous and not value.dtype.hasobject and value.size:
        kind = f"{value.dtype}{value.shape}".encode()
        return bytes(xxhash.xxh3_128(kind).digest() + xxhash.xxh3_128(value.reshape(-1).view(np.uint8).data).digest())
    try:
        return SavedObject(value).digest()
    except _NOT_SAVED:
        return None
