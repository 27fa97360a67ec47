"""Every value that a training loop can reach, by its path and as a short text: for a proof, which compares two runs.

Values are not judged here: what a checkpoint keeps is among them. Large arrays are sampled, TensorFlow's variables and
the objects of libraries are left out. Imports no framework.
"""

import itertools
import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import xxhash

from supervisor.protocol.proof_plan import QUEUE
from worker.checks.loop_source import Entered, frames_of_run, script_frame_of
from worker.checks.reachability import is_installed_file, roots_of_frame
from worker.checks.watch import digests
from worker.checks.watch.referents import parts_of
from worker.checks.watch.standard_objects import is_queue
from worker.state.plain_values import is_tensorflow_tensor, is_torch_tensor
from worker.state.random_generators import GENERATORS, read_generator

MAX_VALUES = 5_000
MAX_DEPTH = 6
MAX_BRANCHES = 100  # entries of a dict that have paths of their own
MAX_ENTRIES = 10_000  # of a container that is one value
SHOWN = 60  # characters

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def snapshot(frame: types.FrameType | None, entered: Entered | None) -> dict[str, str]:
    """The values that the script's frames reach, from `frame` out to the one that entered the run."""
    search = _Search()
    for script_frame in frames_of_run(frame, entered):
        if script_frame_of(script_frame) is not script_frame or is_installed_file(script_frame.f_code.co_filename):
            continue  # a library's loop, such as that of Keras
        for name, value in roots_of_frame(script_frame):
            if not name.startswith("__"):
                search.visit(name, value, 0)
    return search.texts


class _Search:
    """Follows references, each object once."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self._visited: dict[int, Any] = {}  # with the objects, so that no id is used twice

    def visit(self, path: str, value: Any, depth: int) -> None:
        """Adds a value, or what is in it."""
        if len(self.texts) >= MAX_VALUES or path in self.texts:
            return
        if (text := _text(value)) is not None:
            self.texts[path] = text
            if is_torch_tensor(value) and value.is_leaf and value.requires_grad:
                self.texts[f"{path}.grad"] = _text(value.grad) or "None"
            return
        if id(value) in self._visited or depth > MAX_DEPTH:
            return
        self._visited[id(value)] = value
        for name, inside in _inside(path, value):
            self.visit(name, inside, depth + 1)


def _inside(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from (
            (f"{path}[{key!r:.40}]", entry) for key, entry in list(itertools.islice(value.items(), MAX_BRANCHES))
        )
    elif isinstance(value, list | tuple | deque):
        yield from ((f"{path}[{number}]", entry) for number, entry in enumerate(_entries(value, MAX_BRANCHES)))
    else:
        if _is_torch_module(value):
            yield from ((f"{path}.{name}", parameter) for name, parameter in value.named_parameters())
            yield from ((f"{path}.{name}", buffer) for name, buffer in value.named_buffers())
        yield from ((name, part) for name, part, _, _ in parts_of(path, value, set()))


def _is_torch_module(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _text(value: Any) -> str | None:
    """A value as a text that is another one if the value is; None for what is looked into instead."""
    if isinstance(value, _PLAIN):
        return _plain_text(value)
    if isinstance(value, np.generic) or (digests.is_array(value) and _has_value(value)):
        return _array_text(value)
    if isinstance(value, GENERATORS):
        return f"{type(value).__name__} {_hash(repr(read_generator(value)).encode())}"
    if is_queue(value):
        return f"{QUEUE}{_entries_text(value.queue)}"
    if isinstance(value, list | tuple | deque | set | frozenset) and len(value) > 0:
        return _entries_text(value)
    return repr(value) if isinstance(value, list | tuple | deque | dict | set | frozenset) and not value else None


def _plain_text(value: Any) -> str:
    if isinstance(value, str | bytes) and len(value) > SHOWN:  # its `repr` may be several times as long
        content = value if isinstance(value, bytes) else value.encode(errors="surrogatepass")
        return f"{value[: SHOWN - 20]!r}... {_hash(content)}"
    is_wide = isinstance(value, int) and value.bit_length() > 4 * SHOWN  # Python prints no more than 4,300 digits
    text = hex(value) if is_wide else repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 20]}... {_hash(text.encode())}"


def _has_value(array: Any) -> bool:
    """Whether it is no symbolic tensor of TensorFlow."""
    return not is_tensorflow_tensor(array) or hasattr(array, "numpy")


def _entries(container: Any, most: int) -> list[Any]:
    """The first ones, as they lie there: a script's subclass may compute what it iterates over."""
    kind = next(kind for kind in (list, tuple, deque, set, frozenset) if isinstance(container, kind))
    return list(itertools.islice(kind.__iter__(container), most))


def _entries_text(value: Any) -> str | None:
    """A container as one value, if all that is in it are values."""
    entries = [_text(item) for item in _entries(value, MAX_ENTRIES)]
    if any(entry is None for entry in entries):
        return None
    texts = [str(entry) for entry in entries]
    text = ", ".join(sorted(texts) if isinstance(value, set | frozenset) else texts)
    shown = text if len(text) <= SHOWN // 2 else _hash(text.encode())
    return f"{type(value).__name__} of {len(value)}: {shown}"


def _array_text(array: Any) -> str | None:
    """An array as a text; None if it can't be read here: sparse, on no device, not computed."""
    try:
        kind = str(getattr(array.dtype, "name", array.dtype)).removeprefix("torch.")
        if tuple(array.shape) == ():
            return f"{kind} {(array.numpy() if is_tensorflow_tensor(array) else array).item()!r}"
        return f"{kind} {list(array.shape)} {digests.digest_array(array):016x}"
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return None


def _hash(content: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(content)[:8]
