"""The state in `torch.pt`: copied into host memory, searched for values that are not finite, written and read.

Reading accepts tensors and plain values, NumPy's too (`weights_only`), enums and named tuples of the script's modules,
and never objects of other classes.
"""

import contextlib
import copy
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from worker.process.reporting import describe_error
from worker.state.found_classes import plain_class

STATE = "torch.pt"
_MAX_NAMED = 50  # tensors listed in a message
_LACKS_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
_DEVICE_ERRORS = ("CUDA error", "CUDA driver", "CUDA GPU", "cuDNN error", "CUBLAS_STATUS", "NCCL error", "HIP error")
_SUM_TYPES = {
    **dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float32),
    **{dtype: dtype for dtype in (torch.float64, torch.complex64, torch.complex128)},
}
"""The types that have NaN and infinity, and the type in which they are summed."""
_FLOAT8 = frozenset(var for name, var in vars(torch).items() if name.startswith("float8_"))
"""These have NaN too, but not every device can sum them or test them for it."""
_CHUNK_ELEMENTS = 1 << 24  # tested at once: the result takes one byte each, on a device that may be full
_NUMPY_CLASSES: list[Any] = [
    np.dtype, np.ndarray, np.zeros(0).__reduce__()[0], np.float64(0).__reduce__()[0],
    *{type(np.dtype(kind)) for kind in np.typecodes["All"] if kind not in "OV"},
]  # fmt: skip
"""The classes in a pickle of NumPy's numbers and arrays: a learning rate is easily one of its float64."""


def load_state(path: Path) -> Any:
    """Loads the state into host memory. Raises what torch.load raises."""
    with _allowed([kind for name in _other_classes(path) if (kind := plain_class(name)) is not None]):
        return torch.load(path, map_location="cpu", weights_only=True)


def unloadable_classes(path: Path) -> list[str]:
    """The classes because of which `load_state` would refuse the file. Empty before PyTorch 2.6, which can't tell."""
    return [name for name in _other_classes(path) if plain_class(name) is None]


def _other_classes(path: Path) -> list[str]:
    """The classes in a file that PyTorch does not load by itself and that are not NumPy's."""
    inspect = getattr(torch.serialization, "get_unsafe_globals_in_checkpoint", None)
    try:
        names = set(inspect(path)) if inspect is not None else set()
    except (OSError, RuntimeError, ValueError):  # the file could not be read now, which says nothing about its content
        return []
    return sorted(names - {f"{class_.__module__}.{class_.__qualname__}" for class_ in _NUMPY_CLASSES})


@contextlib.contextmanager
def _allowed(classes: Sequence[Any]) -> Iterator[None]:
    """Allows these classes and NumPy's numbers and arrays in loads, besides what the script has allowed. Needs PyTorch
    2.5."""
    allow = getattr(torch.serialization, "safe_globals", None)
    if allow is None:
        yield
        return
    with allow(
        [class_ for class_ in (*_NUMPY_CLASSES, *classes) if class_ not in torch.serialization.get_safe_globals()]
    ):
        yield


class _SaveTarget:
    """The file object for torch.save. It holds back an OSError until the end.

    Raised through PyTorch's writer, it would become an error that doesn't say whether the disk is full.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, content: Any) -> int:
        if self.error is None:
            try:
                self._file.write(content)
            except OSError as error:
                self.error = error
        return len(content)

    def flush(self) -> None:
        """Nothing: closing the file flushes it."""


def save_state(state: Mapping[str, Any], folder: Path) -> None:
    """Writes the state into one file. Raises OSError."""
    with (folder / STATE).open("wb") as file:
        sink = _SaveTarget(file)
        torch.save(dict(state), sink)
        if sink.error is not None:
            raise sink.error


def copy_to_host(value: Any, known: dict[tuple[str, int, int], Any] | None = None) -> Any:
    """Copies a structure with all its tensors into host memory.

    Tensors that share memory share it in the copy too, because torch.save writes such memory once.
    """
    known = {} if known is None else known
    if isinstance(value, torch.Tensor):
        return _copy_tensor_to_host(value.detach(), known)
    if type(value) in (dict, OrderedDict):
        copied = type(value)((key, copy_to_host(entry, known)) for key, entry in value.items())
        if isinstance(value, OrderedDict):
            copied.__dict__.update(copy.deepcopy(value.__dict__))  # of a module: the versions of its parts
        return copied
    if type(value) in (list, tuple):
        return type(value)(copy_to_host(entry, known) for entry in value)
    return copy.deepcopy(value)


def _copy_tensor_to_host(tensor: torch.Tensor, known: dict[tuple[str, int, int], Any]) -> torch.Tensor:
    is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_quantized
    if not is_plain or tensor.is_conj() or tensor.is_neg():
        return tensor.to("cpu", copy=True)
    memory = tensor.untyped_storage()
    key = str(tensor.device), memory.data_ptr(), memory.nbytes()  # one memory may back several storages of other sizes
    if key not in known:
        known[key] = memory.clone() if tensor.device.type == "cpu" else memory.cpu()
    place = tensor.storage_offset(), tensor.size(), tensor.stride()
    return torch.empty(0, dtype=tensor.dtype).set_(known[key], *place)


def _lacks_memory(error: RuntimeError) -> bool:
    """Whether memory ran out.

    PyTorch has a class for that on devices only, and a module's `load_state_dict` replaces it by a plain RuntimeError.
    """
    return isinstance(error, torch.OutOfMemoryError) or any(phrase in str(error) for phrase in _LACKS_MEMORY)


def is_resource_failure(error: RuntimeError) -> bool:
    """Whether memory or the device failed, which says nothing about the checkpoint."""
    return _lacks_memory(error) or any(device_error in str(error) for device_error in _DEVICE_ERRORS)


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """Turns a RuntimeError about a lack of memory into a MemoryError: this save fails, and training continues."""
    try:
        yield
    except RuntimeError as error:
        if _lacks_memory(error):
            raise MemoryError(describe_error(error)) from error
        raise


def raise_if_memory_error(error: RuntimeError) -> None:
    """Raises MemoryError if the text alone says that memory ran out, so that the failure is counted as such."""
    if _lacks_memory(error) and not isinstance(error, torch.OutOfMemoryError):
        raise MemoryError(describe_error(error)) from error


def names_not_finite(parts: Mapping[str, Any]) -> Iterator[str]:
    """Yields the names of tensors with a NaN or an infinity."""
    for name, state in parts.items():
        yield from (f"{name}.{path}" for path, tensor in _named_tensors(state, "") if not is_finite(tensor))


def _named_tensors(state: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields all tensors in a state_dict with their names."""
    if isinstance(state, torch.Tensor):
        yield path, state
    elif isinstance(state, Mapping):
        for key, value in state.items():
            yield from _named_tensors(value, f"{path}.{key}".lstrip("."))
    elif isinstance(state, (list, tuple)):
        for number, value in enumerate(state):
            yield from _named_tensors(value, f"{path}.{number}".lstrip("."))


def differing_tensors(parts: Mapping[str, Any], saved: Mapping[str, Any]) -> list[str]:
    """The parameters and buffers of modules whose type or shape is another one than in the saved state, in words.

    PyTorch itself converts a saved value to the type of the parameter, and says nothing.
    """
    differing: list[str] = []
    for name, part in parts.items():
        if not isinstance(part, torch.nn.Module) or not isinstance(saved.get(name), Mapping):
            continue
        for key, tensor in part.state_dict().items():
            before = saved[name].get(key)
            if not all(isinstance(value, torch.Tensor) and not is_lazy(value) for value in (tensor, before)):
                continue
            was, now = _describe(before), _describe(tensor)
            if was != now:
                differing.append(f"{name}.{key} is {was} in the checkpoint and {now} in the program")
    rest = len(differing) - _MAX_NAMED
    return [*differing[:_MAX_NAMED], *([f"and {rest} more"] if rest > 0 else [])]


def _describe(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def equal_values(one: Any, other: Any) -> bool:
    """Whether two structures hold equal values: tensors, arrays and plain ones, NaN being equal to itself."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        is_same_kind = one.shape == other.shape and one.dtype == other.dtype
        return is_same_kind and bool(((one == other) | ((one != one) & (other != other))).all())
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(equal_values(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(equal_values, one, other))
    if isinstance(one, np.ndarray | np.generic):
        return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))
    has_no_comparison = getattr(type(one), "__eq__", None) is object.__eq__
    return has_no_comparison or bool(one == other) or one != one


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no NaN or infinity.

    Tests the sum first, which needs no memory; only if that is not finite, the elements themselves.
    """
    is_float8, wide = tensor.dtype in _FLOAT8, _SUM_TYPES.get(tensor.dtype)
    if not (is_float8 or wide) or tensor.layout is not torch.strided or tensor.is_meta:
        return True
    with torch.no_grad():
        if wide is not None and bool(torch.isfinite(tensor.sum(dtype=wide))):
            return True
        parts = tensor.reshape(-1).split(_CHUNK_ELEMENTS)
        return all(bool(torch.isfinite(part.float() if is_float8 else part).all()) for part in parts)
