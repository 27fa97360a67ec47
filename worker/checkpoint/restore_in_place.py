"""Restores a large checkpoint of plain variables into the memory that the variables have already.

TensorFlow reads all tensors before it assigns the first one, each through a buffer of its size: beside a state of a
gigabyte that took almost two more, and from 32 MB on one and a half times as long. Here the bytes are read from the
file to where they belong. It is done only where it comes to the same: the objects and names that the program tracks
are those in the checkpoint, byte for byte as TensorFlow describes them there, and nothing but variables in host memory
has state.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from supervisor.protocol.available_memory import memory_threads
from supervisor.protocol.tensorbundle import crc32c, entry, sstable
from supervisor.protocol.tensorbundle.entry import TensorEntry
from supervisor.protocol.tensorbundle.verify import INDEX, OBJECT_GRAPH
from worker.checkpoint.bundle_writer import data_name
from worker.checkpoint.checkpoint_tensors import PlainState, SnapshotImpossible, plain_state

LEAST_BYTES = 16 << 20  # of data files: TensorFlow's own way takes little memory and time for less
PIECE_BYTES = 16 << 20

_Memories = Mapping[str, Any]  # the bytes of each variable, as NumPy's array


def restore_in_place(
    tracked: tf.train.Checkpoint, prefix: Path, least_bytes: int = LEAST_BYTES, proven: memoryview | None = None
) -> bool:
    """Restores all of it, or nothing (False) if TensorFlow has to do it.

    `proven`: the content of the only data file, which this process has just proven: it is not read again, and the index
    may be without checksums. Raises OSError if it can't be read or a checksum is wrong; then some variables are
    restored.
    """
    if sum(path.stat().st_size for path in prefix.parent.glob(f"{prefix.name}.data-*")) < least_bytes:
        return False
    try:
        state = plain_state(tracked)
    except SnapshotImpossible:
        return False
    if state is None:
        return False
    shards, tensors = _read_index(prefix.with_name(prefix.name + INDEX))
    if not _is_same(state, tensors, prefix):
        return False
    # NumPy has a scalar as a copy, and nothing of what is empty
    arrays = {key: variable for key, variable in state.variables.items() if variable.shape.rank and tensors[key].size}
    memories = {key: _memory_of(variable) for key, variable in arrays.items()}
    if not all(memory is not None and len(memory) == tensors[key].size for key, memory in memories.items()):
        return False
    copied = {key: np.empty(tensors[key].size, np.uint8) for key in state.variables if key not in memories}
    filled = memories | copied
    with ExitStack() as stack:
        if proven is None:
            work = _reads(filled, tensors, [_open(prefix, shard, shards, stack) for shard in range(shards)])
        else:
            work = _copies(filled, tensors, np.frombuffer(proven, np.uint8))
        threads = stack.enter_context(ThreadPoolExecutor(memory_threads(), "stepkeeper-restore"))
        for future in [threads.submit(part) for part in work]:
            future.result()
    for key, memory in copied.items():
        if tensors[key].size:
            variable = state.variables[key]
            variable.assign(memory.view(variable.dtype.as_numpy_dtype)[0])
    return True


def _open(prefix: Path, shard: int, shards: int, stack: ExitStack) -> int:
    descriptor = os.open(prefix.with_name(data_name(prefix.name, shard, shards)), os.O_RDONLY | os.O_CLOEXEC)
    stack.callback(os.close, descriptor)
    return descriptor


def _reads(
    memories: _Memories, tensors: Mapping[str, TensorEntry], descriptors: list[int]
) -> Iterator[Callable[[], None]]:
    """What reads each tensor to where it belongs, the largest first."""
    for key in sorted(memories, key=lambda key: -tensors[key].size):
        yield partial(_restore, memories[key], tensors[key], descriptors[tensors[key].shard])


def _copies(memories: _Memories, tensors: Mapping[str, TensorEntry], content: Any) -> Iterator[Callable[[], None]]:
    """What copies each piece of a tensor to where it belongs."""
    for key, memory in memories.items():
        for at in range(0, tensors[key].size, PIECE_BYTES):
            piece, begin = memory[at : at + PIECE_BYTES], tensors[key].offset + at
            yield partial(np.copyto, piece, content[begin : begin + len(piece)])


def _read_index(path: Path) -> tuple[int, dict[str, TensorEntry]]:
    """How many data files there are, and the tensors in them, by key."""
    shards, tensors = 0, {}
    for key, record in sstable.read_table(path):
        if not key:
            shards = entry.parse_header(key, record).shards
        elif (tensor := entry.parse_tensor(key, record)) is not None:
            tensors[key.decode()] = tensor
    return shards, tensors


def _is_same(state: PlainState, tensors: Mapping[str, TensorEntry], prefix: Path) -> bool:
    """Whether the checkpoint holds exactly this state, of types whose elements lie in the file as they do in memory."""
    if state.variables.keys() | {OBJECT_GRAPH} != tensors.keys():
        return False
    reader = tf.train.load_checkpoint(str(prefix))
    shapes = reader.get_variable_to_shape_map()
    return bytes(reader.get_tensor(OBJECT_GRAPH)) == state.graph and all(
        variable.dtype.as_datatype_enum == tensors[key].dtype
        and variable.shape.as_list() == list(shapes[key])
        and (variable.dtype.is_floating or variable.dtype.is_integer or variable.dtype.is_bool)
        for key, variable in state.variables.items()
    )


def _memory_of(variable: Any) -> Any:
    """The bytes in which a variable has its value, to be overwritten; None if that can't be had.

    A variable that was assigned from another one, or made of a tensor, has its memory in common with that until one of
    them is updated. So one element is updated to what it is: TensorFlow then gives the variable a memory of its own. A
    read shares that, unless TensorFlow copies each time: then two reads lie in different places.
    """
    handle = variable.handle

    def read() -> Any:
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype)

    zeros, ones = np.zeros(variable.shape.rank, np.int32), np.ones(variable.shape.rank, np.int32)
    element = {"begin": zeros, "end": ones, "strides": ones}  # `variable[...]` takes ten times as long
    try:
        value = tf.raw_ops.StridedSlice(input=read(), **element)
        tf.raw_ops.ResourceStridedSliceAssign(ref=handle, value=value, **element)
    except tf.errors.OpError:  # TensorFlow can't do that with every type
        return None
    tf.raw_ops.DisableCopyOnRead(resource=handle)  # which that update has turned on
    one, other = read().__array__(), read().__array__()
    is_own = one.ctypes.data == other.ctypes.data and one.flags.writeable and one.flags.c_contiguous
    return one.reshape(-1).view(np.uint8) if is_own else None


def _restore(memory: Any, tensor: TensorEntry, descriptor: int) -> None:
    """Reads a tensor into the memory of its variable, and compares its checksum."""
    crc = done = 0
    while done < tensor.size:
        piece = memory[done : done + PIECE_BYTES]
        count = os.preadv(descriptor, [piece], tensor.offset + done)
        if not count:
            raise OSError(f"the file ends {tensor.size - done} bytes before {tensor.name} does")
        read = piece[:count].view()
        read.flags.writeable = False  # what the checksum's library asks for
        crc = crc32c.extend(crc, read)  # while the processor has it
        done += count
    if sstable.mask(crc) != tensor.crc:
        raise OSError(f"{tensor.name} does not have the checksum in the index")
