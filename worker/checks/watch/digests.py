"""Digests of values that a training script holds: equal digests mean equal values, as far as they are compared.

Arrays and tensors of up to a megabyte are compared whole, of larger ones, of long texts and of containers with many
entries a part: a look at a script's values is between two steps, and some scripts hold gigabytes. Imports no framework.
"""

import datetime
import decimal
import enum
import fractions
import gc
import itertools
import operator
import sys
import types
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import xxhash

from worker.checks.watch.code.bytecode import flow_of
from worker.state.plain_values import class_module, is_tensorflow_tensor, is_torch_tensor

WHOLE_BYTES = 1 << 20  # of an array; hashing takes 0.1 ms, a copy from a GPU about as long
SAMPLE = 4096  # entries of a larger array
ENTRIES = 1000  # of a container; of a longer one, such as a replay memory, the ends and some between
_AT_AN_END = ENTRIES // 5
WHOLE_TEXT = 1 << 16  # of a text; a list may have ENTRIES of them
PLAIN = (
    bool, int, float, complex, str, bytes, type(None), np.generic, PurePath, enum.Enum, datetime.datetime,
    datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, fractions.Fraction, uuid.UUID, range, slice,
)  # fmt: skip
CONTAINERS = (list, tuple, dict, set, frozenset, deque, bytearray, types.MappingProxyType)


def is_array(value: Any) -> bool:
    """Whether a value is an array or a tensor of any library."""
    if isinstance(value, np.ndarray) or is_tensorflow_tensor(value) or is_torch_tensor(value):
        return True
    kind = type(value)  # JAX's, CuPy's and the like, but no variables
    if class_module(kind).startswith(("tensorflow", "keras", "tf_keras")):
        return False
    return hasattr(kind, "__array__") and hasattr(kind, "dtype") and hasattr(kind, "shape")


def tensors_in(value: Any) -> list[Any] | None:
    """The tensors of a sparse or ragged one of TensorFlow's, or in a TensorArray; None for anything else."""
    kind = type(value)
    if not class_module(kind).startswith("tensorflow"):
        return None
    tensorflow = sys.modules["tensorflow"]
    if isinstance(value, tensorflow.TensorArray):  # also in the wrapper that `write` gives
        from worker.internals.tensorflow_internals import tensors_of_array

        return tensors_of_array(value)
    if not hasattr(kind, "_type_spec"):
        return None
    kinds = (tensorflow.RaggedTensor, tensorflow.SparseTensor, tensorflow.IndexedSlices)
    return tensorflow.nest.flatten(value, expand_composites=True) if isinstance(value, kinds) else None


def is_plain(value: Any) -> bool:
    """Whether a value is plain, a container or an array, and no object that gives and takes its own state."""
    return isinstance(value, (*PLAIN, *CONTAINERS)) or is_array(value)


def has_value(array: Any) -> bool:
    """Whether an array has a value that could change: JAX deletes arrays that a step used up, and PyTorch has some that
    are a shape only."""
    is_deleted = getattr(array, "is_deleted", None)
    return not (getattr(array, "is_meta", False) is True or (callable(is_deleted) and is_deleted()))


def digest_plain(value: Any) -> int:
    """The digest of a plain value: NaN is equal to itself, 1 is not equal to 1.0."""
    if isinstance(value, str | bytes):
        shown = repr(_part_of(value, WHOLE_TEXT))
    elif isinstance(value, int) and not isinstance(value, bool | enum.Enum):
        shown = hex(value)  # Python refuses more than 4,300 decimal digits
    else:
        shown = repr(value)
    return xxhash.xxh3_64_intdigest(f"{type(value).__name__} {shown}".encode(errors="surrogatepass"))


def digest_array(value: Any) -> int:
    """The digest of an array. Raises what its library raises if it can't be read."""
    form = f"{value.dtype} {tuple(value.shape)}"
    return xxhash.xxh3_64_intdigest(form.encode() + _bytes_of(value))


def part_of_buffer(holder: Any) -> tuple[int, bytes]:
    """Of what gives its memory as a buffer: how many bytes, and those that are compared. No view of it is left."""
    size = memoryview(holder).nbytes
    return size, _bytes_of_numpy(np.frombuffer(holder, np.uint8)) if size else b""


def part_of_frame(frame: Any) -> tuple[int, list[Any]] | None:
    """Of a data frame, as pandas has them: how many rows, and the columns of all or some of them; None for others."""
    if not (hasattr(type(frame), "iloc") and hasattr(type(frame), "columns")):
        return None
    rows, columns = frame.shape
    part = frame.iloc[:: max(1, rows // SAMPLE)]
    return rows, [part.iloc[:, number].to_numpy() for number in range(min(columns, ENTRIES))]


def digest_all(digests: Iterable[int]) -> int:
    """One digest of several, in their order."""
    hashed = xxhash.xxh3_64()
    for digest in digests:
        hashed.update(digest.to_bytes(8, "little"))
    return hashed.intdigest()


def entries_of(container: Any) -> list[tuple[str, Any]]:
    """The entries of a container that are compared, each with what stands behind the container's name: `[3]`.

    Takes memory for these entries alone, however many there are. Raises RuntimeError or LookupError if another thread
    changes the container meanwhile, TypeError if it can't be read so.
    """
    if isinstance(container, bytearray):
        return [("", _part_of(container, WHOLE_BYTES))]
    if isinstance(container, Mapping):
        return [(f"[{_shown(key, number)}]", value) for number, (key, value) in enumerate(_some_items(container))]
    if isinstance(container, set | frozenset):
        return [("", value) for value in _some_members(container)]
    kind = next(kind for kind in (list, tuple, deque) if isinstance(container, kind))  # a script's subclass may compute
    return [(f"[{number}]", kind.__getitem__(container, number)) for number in _some_numbers(kind.__len__(container))]


def _shown(key: Any, number: int) -> str:
    """A key of a mapping; of one that training changes, such as a parameter of PyTorch, only what and which it is."""
    return f"{type(key).__name__} {number}" if is_array(key) else repr(key)


def _some_numbers(length: int) -> Iterable[int]:
    """Of the entries of a sequence: all, or the ends and some between."""
    if length <= ENTRIES:
        return range(length)
    between = range(_AT_AN_END, length - _AT_AN_END, _distance(length))
    return itertools.chain(range(_AT_AN_END), between, range(length - _AT_AN_END, length))


def _some_items(mapping: Mapping[Any, Any]) -> Iterable[tuple[Any, Any]]:
    length = len(mapping)
    if length <= ENTRIES:
        return list(mapping.items())
    between = itertools.islice(mapping.items(), _AT_AN_END, length - _AT_AN_END, _distance(length))
    last = itertools.islice(reversed(mapping.items()), _AT_AN_END)  # type: ignore[call-overload]
    return [*itertools.islice(mapping.items(), _AT_AN_END), *between, *last]


def _some_members(members: set[Any] | frozenset[Any]) -> list[Any]:
    """In the same order for equal sets. Of a larger one the sum of all hashes, and of its objects the first ones."""
    if len(members) <= ENTRIES:
        return sorted(members, key=lambda entry: (type(entry).__name__, repr(entry)))
    first = itertools.islice(members, ENTRIES)
    return [sum(map(hash, members)), *(entry for entry in first if not isinstance(entry, PLAIN + CONTAINERS))]


def _distance(length: int) -> int:
    """Between two entries of those that are compared between the ends."""
    return max(1, length * 5 // (ENTRIES * 3))


def _part_of(content: Any, whole: int) -> Any:
    """A text or bytes, or of what is longer than `whole` the ends and some between."""
    if len(content) <= whole:
        return bytes(content) if isinstance(content, bytearray) else content
    part = content[:SAMPLE] + content[:: len(content) // SAMPLE] + content[-SAMPLE:]
    return bytes(part) if isinstance(content, bytearray) else f"{len(content)} {part!r}"


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        return _bytes_of_numpy(value)
    if is_tensorflow_tensor(value):
        return _bytes_of_tensorflow(value)
    if is_torch_tensor(value):
        return _bytes_of_torch(value)
    try:
        return _bytes_of_numpy(np.asarray(value))
    except TypeError:  # JAX's typed keys are no numbers; what they print is their value
        return repr(value).encode()


def _bytes_of_numpy(array: np.ndarray[Any, Any]) -> bytes:
    if array.dtype.hasobject:
        return repr(array.reshape(-1)[:SAMPLE].tolist()).encode()
    if array.nbytes <= WHOLE_BYTES:
        return array.tobytes()
    distance = max(1, array.size // SAMPLE)
    flat = array.reshape(-1) if array.flags.c_contiguous else array.flat  # what is not contiguous would be copied
    return flat[::distance].tobytes()


def _bytes_of_tensorflow(tensor: Any) -> bytes:
    if not hasattr(tensor, "numpy"):  # symbolic: it has no value
        return repr(tensor).encode()
    tensorflow = sys.modules["tensorflow"]
    count = int(np.prod(tensor.shape, dtype=np.int64))
    if count * tensor.dtype.size > WHOLE_BYTES:
        tensor = tensorflow.reshape(tensor, [-1])[:: max(1, count // SAMPLE)]
    return _bytes_of_numpy(np.asarray(tensor.numpy()))


def _bytes_of_torch(tensor: Any) -> bytes:
    torch = sys.modules["torch"]
    held = tensor.detach()
    if held.is_sparse or held.is_quantized:
        return repr(held).encode()
    if held.numel() * held.element_size() > WHOLE_BYTES:
        held = _some_of_torch(torch, held, max(1, held.numel() // SAMPLE))
    held = held.cpu().contiguous().reshape(-1)
    content: bytes = held.view(torch.uint8).numpy().tobytes()
    return content


def _some_of_torch(torch: Any, tensor: Any, distance: int) -> Any:
    """Elements so far apart, counted as if the tensor were flat. One that is not contiguous is not copied for it."""
    if tensor.is_contiguous():
        return tensor.reshape(-1)[::distance]
    left, places = torch.arange(0, tensor.numel(), distance, device=tensor.device), []
    for size in reversed(tensor.shape):
        places.append(left % size)
        left = left // size
    return tensor[tuple(reversed(places))]


ASYNC: Any = types.CoroutineType | types.AsyncGeneratorType


def frame_of(generator: Any) -> types.FrameType | None:
    """The frame of a generator or a coroutine; None of one that has ended."""
    names = ("gi_frame", "cr_frame", "ag_frame")
    frames: Iterable[types.FrameType] = (frame for name in names if (frame := getattr(generator, name, None)))
    return next(iter(frames), None)


class _Sequence:
    """What Python reads by number."""

    def __getitem__(self, number: int) -> int:
        raise IndexError(number)


_BUILT_IN_ITERATORS: dict[type, Callable[[Any], Any]] = {
    kind: kind.__reduce__
    for kind in (
        type(iter([])), type(iter(())), type(iter(range(0))), type(iter({})), type(iter(set())), type(iter("")),
        enumerate, zip, map, filter, reversed, itertools.count, itertools.cycle, itertools.chain, itertools.islice,
        itertools.repeat, itertools.product, itertools.permutations, itertools.combinations, itertools.accumulate,
        itertools.starmap, itertools.takewhile, itertools.dropwhile, itertools.compress, itertools.filterfalse,
        itertools.zip_longest, itertools.combinations_with_replacement, type(itertools.tee([])[0]),
        type(iter(_Sequence())),
    )
    if hasattr(kind, "__reduce__")
}  # fmt: skip
_AROUND_OTHERS = (itertools.groupby, itertools.pairwise)  # which can't be reduced, and are where those are


def digest_position(iterator: Any, depth: int = 6) -> int | None:
    """The digest of how far an iterator is; None if that can't be told. Looking does not move it.

    A generator is where its code stands, with the local values that it will read, with the iterators that its loops
    hold, and with what an expression has read before its `yield`, as the first n of `n += yield n`.
    """
    if isinstance(iterator, types.GeneratorType | ASYNC):
        frame = frame_of(iterator)
        if frame is None:
            return 0
        held = gc.get_referents(iterator)
        iterators = [value for value in held if hasattr(type(value), "__next__")]
        return _digest_held(
            [frame.f_lasti, *locals_to_read(frame).values(), *iterators, *_plain_beside_locals(held, frame)], depth
        )
    if (reduce := _BUILT_IN_ITERATORS.get(type(iterator))) is not None:
        reduced = reduce(iterator)
        return _digest_held(reduced[1:] if isinstance(reduced, tuple) else [reduced], depth)
    if type(iterator).__module__ in ("builtins", "_collections") and "__length_hint__" in vars(type(iterator)):
        return digest_plain(operator.length_hint(iterator))  # of the values or items of a dict, of a deque, of bytes
    if isinstance(iterator, _AROUND_OTHERS):
        return _digest_held(gc.get_referents(iterator), depth)
    if (number := getattr(iterator, "_num_yielded", None)) is not None:  # of PyTorch's DataLoader
        return digest_plain(number)
    if class_module(type(iterator)) in ("csv", "_csv"):
        return digest_plain(iterator.line_num)
    return None


def _plain_beside_locals(held: Iterable[Any], frame: types.FrameType) -> list[Any]:
    """The plain values among what a generator holds, without one for each of its variables: what its expressions wait
    with."""
    plain = [value for value in held if isinstance(value, PLAIN)]
    for name in set(frame.f_code.co_varnames).difference(frame.f_code.co_cellvars) & frame.f_locals.keys():
        value = frame.f_locals[name]
        place = next((number for number, other in enumerate(plain) if other is value), None)
        if place is not None:
            del plain[place]
    return plain


def locals_to_read(frame: types.FrameType | None) -> dict[str, Any]:
    """The local values of a generator that its code may read before it assigns them; none of one that has ended."""
    if frame is None:
        return {}
    flow = flow_of(frame.f_code)
    read = flow.names_read(flow.control.index_at(frame.f_lasti))
    return {name: value for name, value in frame.f_locals.items() if name in read or name in frame.f_code.co_freevars}


def _digest_held(held: Iterable[Any], depth: int) -> int:
    """The digest of numbers, arrays and iterators among values; what they run over is not part of a position."""
    digests = []
    for value in itertools.islice(held, ENTRIES):
        if isinstance(value, PLAIN):
            digests.append(digest_plain(value))
        elif is_array(value):
            digests.append(digest_array(value) if has_value(value) else 0)
        elif isinstance(value, CONTAINERS) and depth > 0:
            digests.append(_digest_held([len(value), *(entry for _, entry in entries_of(value))], depth - 1))
        elif hasattr(type(value), "__next__") and depth > 0:
            digests.append(digest_position(value, depth - 1) or 0)
    return digest_all(digests)
