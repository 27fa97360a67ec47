"""Whether tensors on their way to the disk are finite: a checkpoint that is not is no place to begin from."""

from collections.abc import Iterable, Mapping

import numpy as np
import tensorflow as tf

from worker.snapshot import Snapshot

_FLOATS = frozenset({"bfloat16", "float16", "float32", "float64"})


def not_finite(bundles: Mapping[str, Snapshot]) -> frozenset[str]:
    """The keys of tensors with a NaN or an infinity. On any thread; reads every float once (a few GB/s a core)."""
    return frozenset(name for bundle in bundles.values() for name in _of(bundle))


def _of(bundle: Snapshot) -> Iterable[str]:
    for name, tensor in zip(bundle.names, bundle.tensors, strict=True):
        if tensor.dtype.name in _FLOATS and not _is_finite(tensor):
            yield name


def _is_finite(tensor: tf.Tensor) -> bool:
    """A sum is not finite if a term is not, and costs no memory; only one that is not is looked at closely."""
    values = tensor.numpy()
    wide = np.float64 if values.dtype == np.float64 else np.float32
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.sum(values, dtype=wide)):
            return True
        return bool(np.isfinite(values.astype(wide, copy=False)).all())


def named(key: str) -> str:
    """A tensor's key as people know it: without TensorFlow's ending."""
    return key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE")
