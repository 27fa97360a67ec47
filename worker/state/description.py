"""Descriptions of what a run reads: how two of them differ, and a sample of the content of arrays.

Imports no framework.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import xxhash

BATCH_SIZE, BATCHES, CONTENT = "batch size", "number of batches", "content"
EPOCH_BATCHES = "number of batches in an epoch"
ENDLESS, UNKNOWN = -1, -2  # as TensorFlow counts batches
SAMPLED_ROWS = 16  # of each array, spread over its length
_MAX_ROW_BYTES = 1 << 16  # that are hashed: with all rows 1 MiB, which takes a millisecond

Rows = tuple[int, str, Callable[[int], Any]]
"""An array: its number of rows, its type and the shape of a row in words, and what gives a row as a NumPy array."""


def sample_of_content(arrays: Iterable[Rows]) -> str:
    """A hash of some rows of arrays, and of their types, shapes and lengths.

    Of texts with slashes the last part counts, as paths may begin otherwise on each host.
    """
    hashed = xxhash.xxh3_64()
    for count, form, row in arrays:
        hashed.update(f"{count} {form};".encode())
        last = SAMPLED_ROWS - 1
        for number in sorted({place * (count - 1) // last for place in range(SAMPLED_ROWS)}) if count else ():
            hashed.update(_bytes_of(np.asarray(row(number))))
    return hashed.hexdigest()


def _bytes_of(row: np.ndarray[Any, Any]) -> bytes:
    if row.dtype.kind in "OSU":
        texts = [
            value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in row.reshape(-1)
        ]
        return "\0".join(text.rpartition("/")[2] for text in texts).encode()[:_MAX_ROW_BYTES]
    return np.ascontiguousarray(row).reshape(-1).view(np.uint8)[:_MAX_ROW_BYTES].tobytes()


def rows_of_array(array: Any) -> Rows | None:
    """Those of an array of NumPy or TensorFlow; None if it has no rows."""
    shape = tuple(array.shape)
    if not shape or shape[0] is None:
        return None
    return (
        int(shape[0]),
        f"{np.dtype(getattr(array.dtype, 'as_numpy_dtype', array.dtype)).name} {list(shape[1:])}",
        (lambda number: np.asarray(array[number])),
    )


def batches_of_epoch(epoch: int, count: int, before: Mapping[str, Any]) -> dict[str, Any]:
    """For data that are made anew for each epoch: the number of batches of this one, and whether the one before had as
    many. `before`: the description of the epoch before, or of this one in an earlier process."""
    known = before.get(EPOCH_BATCHES)
    is_usual = known is not None and known["count"] == count and (known["usual"] or known["epoch"] != epoch)
    return {EPOCH_BATCHES: {"epoch": epoch, "count": count, "usual": is_usual}}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """What differs, in words."""
    left_out = {BATCHES, EPOCH_BATCHES} if before.get(BATCH_SIZE) != now.get(BATCH_SIZE) else set()
    names = [name for name in now if name in before and _differ(name, before[name], now[name]) and name not in left_out]
    if len(names) > 1 and CONTENT in names:
        names.remove(CONTENT)  # it follows from the others
    return tuple(_difference(name, before[name], now[name]) for name in names)


def _differ(name: str, before: Any, now: Any) -> bool:
    if name == EPOCH_BATCHES:
        return bool(before["count"] != now["count"] and (before["epoch"] == now["epoch"] or before["usual"]))
    return bool(before != now)


def _difference(name: str, before: Any, now: Any) -> str:
    if name == CONTENT:
        return "content of the data is another one, in a sample of their rows"
    if name == EPOCH_BATCHES:
        name, now, before = f"{BATCHES} in epoch {now['epoch']}", now["count"], before["count"]
    return f"{name} of the data is {_text(now)}, was {_text(before)}"


def _text(value: Any) -> str:
    return "unknown" if value in (None, UNKNOWN) else "endless" if value == ENDLESS else str(value)
