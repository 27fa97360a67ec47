"""Captures the tensors that a `tf.train.Checkpoint` would write, between two steps, and checks that they are finite.

`checkpoint_tensors.py` says which tensors, under which keys; files are those that `Checkpoint.write` makes, byte for
byte.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import tensorflow as tf

from supervisor.protocol.checkpoints.new_folder import NewFile, NewFolder
from supervisor.protocol.tensorbundle import entry as bundle_entry
from worker.checkpoint import bundle_writer
from worker.checkpoint.bundle_writer import BundleCopy
from worker.checkpoint.checkpoint_tensors import CheckpointTensors, SnapshotImpossible
from worker.checkpoint.copy_memory import BufferPool, CopyMemory
from worker.devices.tpu import host_memory_device
from worker.state import extra_state


class Snapshot(Protocol):
    """The content of one bundle of files."""

    def write(self, folder: NewFolder, prefix: str) -> None:
        """Writes PREFIX.index and PREFIX.data-00000-of-00001. On any thread; raises OSError or tf.errors.OpError."""

    def elements(self) -> Iterable[tuple[str, np.ndarray]]:
        """Names and elements of the tensors that hold numbers."""

    def release(self) -> None:
        """Frees the memory; it is not used any more."""


@dataclass(frozen=True, slots=True)
class TensorSnapshot:
    """Tensors that may share memory with variables. `slices`: which part of a larger tensor each is; mostly empty."""

    names: tuple[str, ...]
    slices: tuple[str, ...]
    tensors: tuple[tf.Tensor, ...]

    @property
    def are_plain(self) -> bool:
        """Whether their files can be written without TensorFlow."""
        return not any(self.slices) and all(bundle_writer.is_writable(tensor.dtype) for tensor in self.tensors)

    def write(self, folder: NewFolder, prefix: str) -> None:
        if self.are_plain:
            bundle_writer.write_bundle(folder, prefix, zip(self.names, self.tensors, strict=True))
            return
        with tf.device(host_memory_device()):
            tf.raw_ops.SaveV2(
                prefix=str(folder.path / prefix),
                tensor_names=self.names,
                shape_and_slices=self.slices,
                tensors=self.tensors,
            )
        adopt_bundle_files(folder, prefix)

    def write_data(self, data: NewFile) -> bundle_writer.Written:
        """Writes a data file alone; of plain tensors."""
        return bundle_writer.write_data(data, zip(self.names, self.tensors, strict=True))

    def elements(self) -> Iterator[tuple[str, np.ndarray]]:
        for name, tensor in zip(self.names, self.tensors, strict=True):
            if tensor.dtype.as_datatype_enum in bundle_entry.WIDTHS:
                yield name, bundle_writer.host_elements(tensor)

    def release(self) -> None:
        pass


def adopt_bundle_files(folder: NewFolder, prefix: str) -> None:
    """Adds the files of a bundle that TensorFlow wrote to the folder, however many data files there are."""
    for path in sorted(folder.path.glob(f"{prefix}.*")):
        folder.adopt(path.name)


def capture_tensors(source: CheckpointTensors, copied: bool, pool: BufferPool) -> Snapshot:
    """The present values. Call it between steps, on the thread that trains.

    `copied`: copies them into memory of `pool`, as much as the tensors need and no more, so that training may go on;
    `release` gives it back. Otherwise the tensors may share the variables' memory, and have to be written before the
    next step. Raises SnapshotImpossible; MemoryError or tf.errors.OpError if there is no memory.
    """
    names, slices, tensors = zip(*source.read(), strict=True)
    taken = TensorSnapshot(names, slices, tensors)
    if not copied:
        return taken
    if taken.are_plain:
        return bundle_writer.BundleCopy(tuple(zip(names, tensors, strict=True)), pool)
    pool.clear()  # TensorFlow takes memory of its own
    return TensorSnapshot(names, slices, tuple(map(_deep_copy, names, tensors)))


def copy_tensors(source: CheckpointTensors, memory: CopyMemory) -> BundleCopy:
    """Copies the present values into `memory`. Call it between steps, on the thread that trains.

    Raises SnapshotImpossible, also if only TensorFlow can write their file; MemoryError or tf.errors.OpError if there
    is no memory.
    """
    names, slices, tensors = zip(*source.read(), strict=True)
    if not TensorSnapshot(names, slices, tensors).are_plain:
        raise SnapshotImpossible("only TensorFlow can write parts of the state")
    return BundleCopy(tuple(zip(names, tensors, strict=True)), memory)


def _deep_copy(name: str, tensor: tf.Tensor) -> tf.Tensor:
    """A copy that shares no memory with a variable; what a read returns may be the variable's own buffer."""
    try:
        with tf.device(host_memory_device()):
            return tf.raw_ops.DeepCopy(x=tensor)
    except (tf.errors.InvalidArgumentError, tf.errors.NotFoundError, tf.errors.UnimplementedError) as error:
        raise SnapshotImpossible(f"{name} is of type {tensor.dtype.name}, which TensorFlow can't copy") from error


_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_SUM_TYPES: Mapping[str, type[np.generic]] = {
    **dict.fromkeys(("bfloat16", "float16", "float32"), np.float32),
    "float64": np.float64,
    **dict.fromkeys(
        (f"float8_{kind}" for kind in ("e5m2", "e4m3fn", "e4m3fnuz", "e4m3b11fnuz", "e5m2fnuz")), np.float32
    ),
    "complex64": np.complex64,
    "complex128": np.complex128,
}
"""By TensorFlow's names, the types whose elements may be a NaN or an infinity, and the types to sum them in."""


def find_not_finite(bundles: Mapping[str, Snapshot]) -> frozenset[str]:
    """The keys of tensors with a NaN or an infinity. On any thread; reads every float once (a few GB/s a core)."""
    return frozenset(
        name
        for bundle in bundles.values()
        for name, elements in bundle.elements()
        if elements.dtype.name in _SUM_TYPES and not _are_finite(elements)
    )


def _are_finite(values: np.ndarray) -> bool:
    """Whether all values are finite. A finite sum proves it and costs no memory; else each value is checked."""
    wide = _SUM_TYPES[values.dtype.name]
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.sum(values, dtype=wide)):
            return True
        return bool(np.isfinite(values.astype(wide, copy=False)).all())


def find_variables_not_finite(tracked: tf.train.Checkpoint) -> frozenset[str]:
    """The keys of tracked variables with a NaN or an infinity, read one by one without serializing other objects."""
    return frozenset(
        f"{path}{_VALUE}"
        for path, item in extra_state.tracked_by_path(tracked)
        if isinstance(item, (tf.Variable, tf.keras.Variable))
        and getattr(item.dtype, "name", item.dtype) in _SUM_TYPES
        and not _are_finite(bundle_writer.host_elements(tf.convert_to_tensor(item)))  # a variable would copy
    )


def tensor_name(key: str) -> str:
    """A tensor's key without TensorFlow's suffix, as people know it."""
    return key.removesuffix(_VALUE)
