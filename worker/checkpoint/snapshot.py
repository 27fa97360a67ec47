"""The tensors that a `tf.train.Checkpoint` would write, taken between two steps and written whenever.

Which tensors, under which keys, and the description of the objects that a restore needs, come from TensorFlow's own
saver; the files are then those that `Checkpoint.write` makes, byte for byte.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from supervisor.protocol.checkpoints.new_folder import NewFolder
from supervisor.protocol.tensorbundle import entry as bundle_entry
from worker.checkpoint import bundle_writer
from worker.checkpoint.bundle_writer import BufferPool
from worker.devices.tpu import host_memory_device


class SnapshotImpossible(Exception):
    """These objects can only be written while nothing changes them; the text says what stands in the way."""


class Snapshot(Protocol):
    """What one bundle of files is to hold."""

    def write(self, folder: NewFolder, prefix: str) -> None:
        """Makes PREFIX.index and PREFIX.data-00000-of-00001. On any thread; raises OSError or tf.errors.OpError."""

    def elements(self) -> Iterable[tuple[str, np.ndarray]]:
        """Names and elements of the tensors that have numbers."""

    def release(self) -> None:
        """It is not needed any more."""


@dataclass(frozen=True, slots=True)
class TensorSnapshot:
    """`slices`: which part of a larger tensor each is; mostly empty."""

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

    def elements(self) -> Iterator[tuple[str, np.ndarray]]:
        for name, tensor in zip(self.names, self.tensors, strict=True):
            if tensor.dtype.as_datatype_enum in bundle_entry.WIDTHS:
                yield name, bundle_writer.host_elements(tensor)

    def release(self) -> None:
        pass


def adopt_bundle_files(folder: NewFolder, prefix: str) -> None:
    """Takes over what TensorFlow wrote: one bundle, in however many data files."""
    for path in sorted(folder.path.glob(f"{prefix}.*")):
        folder.adopt(path.name)


def capture_tensors(tracked: tf.train.Checkpoint, copied: bool, reserve: BufferPool) -> Snapshot:
    """What `tracked` holds now. Call it between steps, on the thread that trains.

    `copied`: into memory of its own, as much as the tensors and no more, so that training may go on; from `reserve`,
    which has it back with the release. Otherwise the tensors may share the variables' memory, and have to be written
    before the next step.
    Raises CannotSnapshot; MemoryError or tf.errors.OpError if there is no memory.
    """
    names, slices, tensors = zip(*_serialized(tracked), strict=True)
    taken = TensorSnapshot(names, slices, tensors)
    if not copied:
        return taken
    if taken.are_plain:
        return bundle_writer.BundleCopy(tuple(zip(names, tensors, strict=True)), reserve)
    return TensorSnapshot(names, slices, tuple(map(_deep_copy, names, tensors)))


def _deep_copy(name: str, tensor: tf.Tensor) -> tf.Tensor:
    """A copy that no variable shares: what a read gives may be the variable's own buffer."""
    try:
        with tf.device(host_memory_device()):
            return tf.raw_ops.DeepCopy(x=tensor)
    except (tf.errors.InvalidArgumentError, tf.errors.NotFoundError, tf.errors.UnimplementedError) as error:
        raise SnapshotImpossible(f"{name} is of type {tensor.dtype.name}, which TensorFlow can't copy") from error


def _serialized(tracked: tf.train.Checkpoint) -> Iterator[tuple[str, str, tf.Tensor]]:
    """Key, slice and tensor of each entry. TensorFlow has no public way to ask for them."""
    try:
        gathered, _, registered, _ = tracked._saver._gather_serialized_tensors()
    except (AttributeError, TypeError) as error:
        raise SnapshotImpossible(f"TensorFlow {tf.__version__} has no saver that stepkeeper knows: {error}") from error
    if registered:
        raise SnapshotImpossible(f"it tracks objects with a saver of their own ({', '.join(map(str, registered))})")
    for entries in gathered.values():
        for key, entry in entries.items():
            for part, one in entry.items() if isinstance(entry, dict) else [("", entry)]:
                name, place, tensor = _resolved(key, part, one)
                if tensor is not None:  # None: in the description of the objects, without a value
                    yield name, place, tensor


def _resolved(key: str, part: str, entry: Any) -> tuple[str, str, tf.Tensor | None]:
    """An entry is a tensor, or a specification that reads one when asked."""
    if not hasattr(entry, "slice_spec"):
        return key, part, entry
    with tf.device(entry.device):
        return entry.name or key, (entry.slice_spec or part).strip(), entry.tensor


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
                and not _are_finite(bundle_writer.host_elements(child))
            ):
                found.add(f"{path}{_VALUE}")
    return frozenset(found)


def _may_be_no_number(variable: Any) -> bool:
    return getattr(variable.dtype, "name", variable.dtype) in _WIDE


def tensor_name(key: str) -> str:
    """A tensor's key as people know it: without TensorFlow's ending."""
    return key.removesuffix(_VALUE)
