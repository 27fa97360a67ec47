"""Whether tensors on their way to the disk are finite: a checkpoint that is not is no place to begin from."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from worker.checkpoint import bundle_writer as bundle
from worker.checkpoint.snapshot import Snapshot

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_WIDE: Mapping[str, type[np.generic]] = {
    **dict.fromkeys(("bfloat16", "float16", "float32"), np.float32),
    "float64": np.float64,
    **dict.fromkeys(
        (f"float8_{each}" for each in ("e5m2", "e4m3fn", "e4m3fnuz", "e4m3b11fnuz", "e5m2fnuz")), np.float32
    ),
    "complex64": np.complex64,
    "complex128": np.complex128,
}
"""The types whose elements may be no numbers, by TensorFlow's names: what their sums are made in."""


def find_not_finite(bundles: Mapping[str, Snapshot]) -> frozenset[str]:
    """The keys of tensors with a NaN or an infinity. On any thread; reads every float once (a few GB/s a core)."""
    return frozenset(name for bundle in bundles.values() for name in _of(bundle))


def _of(bundle: Snapshot) -> Iterable[str]:
    return (name for name, elements in bundle.elements() if elements.dtype.name in _WIDE and not _are_finite(elements))


def _are_finite(values: np.ndarray) -> bool:
    """A sum is not finite if a term is not, and costs no memory; only one that is not is looked at closely."""
    wide = _WIDE[values.dtype.name]
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.sum(values, dtype=wide)):
            return True
        return bool(np.isfinite(values.astype(wide, copy=False)).all())


def find_variables_not_finite(tracked: tf.train.Checkpoint) -> frozenset[str]:
    """The same of the variables that are there now, read one by one: serializing would call what others track."""
    view, paths, found = tf.train.TrackableView(tracked), {id(tracked): ""}, set()
    waiting = [tracked]
    for parent in waiting:
        for name, child in view.children(parent).items():
            if id(child) in paths:
                continue
            paths[id(child)] = path = f"{paths[id(parent)]}/{name}".lstrip("/")
            waiting.append(child)
            if (
                isinstance(child, (tf.Variable, tf.keras.Variable))
                and _may_be_no_number(child)
                and not _are_finite(bundle.host_elements(child))
            ):
                found.add(f"{path}{_VALUE}")
    return frozenset(found)


def _may_be_no_number(variable: Any) -> bool:
    return getattr(variable.dtype, "name", variable.dtype) in _WIDE


def tensor_name(key: str) -> str:
    """A tensor's key as people know it: without TensorFlow's ending."""
    return key.removesuffix(_VALUE)
