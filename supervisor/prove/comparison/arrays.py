"""Compares files of NumPy's, .npy and .npz, and the values of `run.state` in one, without NumPy."""

import ast
import io
import json
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.prove.comparison.tensors import TensorDifference, first_difference

_MAGIC = b"\x93NUMPY"
_BODY = "body"  # of the file of run.state: the JSON among the arrays
_ORDER = "order"  # and the order in which run.order goes through the epoch


@dataclass(frozen=True, slots=True)
class Array:
    """An array: type and shape as its header says, and its bytes."""

    header: str
    content: bytes


def read_array(file: bytes) -> Array:
    """The array in a .npy file. Raises ValueError."""
    if not file.startswith(_MAGIC) or len(file) < 12:
        raise ValueError("it is no .npy file")
    wide = file[6] >= 2
    (length,) = struct.unpack("<I" if wide else "<H", file[8 : 12 if wide else 10])
    begin = (12 if wide else 10) + length
    return Array(file[12 if wide else 10 : begin].decode("latin-1").strip(), file[begin:])


def read_arrays(path: Path) -> dict[str, Array]:
    """The arrays of a .npz file, or the one of a .npy file under the name "".

    Raises OSError, ValueError, BadZipFile.
    """
    if path.suffix == ".npy":
        return {"": read_array(path.read_bytes())}
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
        return {name.removesuffix(".npy"): read_array(archive.read(name)) for name in archive.namelist()}


def differing_arrays(one: Path, other: Path) -> Iterator[TensorDifference]:
    """The arrays of two files that differ. Raises as `read_arrays`."""
    first, second = read_arrays(one), read_arrays(other)
    for name in sorted(first.keys() | second.keys()):
        if first.get(name) != second.get(name):
            shown = f'{one.name}["{name}"]' if name else one.name
            yield TensorDifference(shown, *_first(first.get(name), second.get(name)))


def _first(one: Array | None, other: Array | None) -> tuple[str, str]:
    if one is None or other is None:
        return ("absent" if one is None else "present"), ("absent" if other is None else "present")
    if one.header != other.header:
        return one.header, other.header
    described = ast.literal_eval(one.header)
    kind = _kind(str(described.get("descr")))
    if kind is None:
        return f"{len(one.content)} bytes", f"{len(other.content)} other bytes"
    return first_difference(one.content, other.content, kind, described.get("shape") == ())


def _kind(described: str) -> str | None:
    """How struct names a NumPy type such as `<f4`."""
    letters = {"f2": "e", "f4": "f", "f8": "d", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H",
               "u4": "I", "u8": "Q", "b1": "?"}  # fmt: skip
    return letters.get(described[1:]) if described[:1] in "<|" else None


def differing_values(one: Path, other: Path) -> Iterator[TensorDifference]:
    """The values of `run.state` that differ, of two of its files; a file that is absent has none."""
    first, second = _values(one), _values(other)
    for name in sorted(first.keys() | second.keys()):
        mine, theirs = first.get(name), second.get(name)
        if mine != theirs:
            yield TensorDifference(name, *_texts(mine, theirs))


Value = tuple[Any, Mapping[str, Array]]
"""A saved value: its JSON, and the arrays that this names."""


def _values(path: Path) -> dict[str, Value]:
    """By the name that a user knows."""
    if not path.exists():
        return {}
    arrays = read_arrays(path)
    body = _read_json(arrays[_BODY])
    values: dict[str, Value] = {
        f'run.state["{name}"]': (saved["value"], _below(str(number), arrays))
        for number, (name, saved) in enumerate(body.items(), 1)
    }
    if _ORDER in arrays:
        values["run.order"] = _read_json(arrays[_ORDER]), _below(_ORDER, arrays)
    return values


def _read_json(array: Array) -> Any:
    return json.loads(array.content, parse_constant=str)  # as a text, NaN is equal to itself


def _below(folder: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays of one value, under the names that its JSON has for them."""
    return {key.partition("/")[2]: array for key, array in arrays.items() if key.startswith(f"{folder}/")}


def _texts(one: Value | None, other: Value | None) -> tuple[str, str]:
    if one is None or other is None:
        return ("absent" if one is None else "present"), ("absent" if other is None else "present")
    if one[0] != other[0]:
        return _short(one[0]), _short(other[0])
    key = next(key for key in one[1] if one[1][key] != other[1].get(key))
    kind = _kind(_described(one[0], key))
    if kind is None:
        return "its bytes", "other bytes"
    return first_difference(one[1][key].content, other[1][key].content, kind)


def _described(saved: Any, array: str) -> str:
    """The type of an array inside a saved value."""
    if isinstance(saved, dict):
        if saved.get("array") == array:
            return str(saved.get("dtype", ""))
        return next(filter(None, (_described(value, array) for value in saved.values())), "")
    if isinstance(saved, list):
        return next(filter(None, (_described(value, array) for value in saved)), "")
    return ""


def _short(saved: Any) -> str:
    if isinstance(saved, dict) and "items" in saved:
        return f"{saved.get('kind')} of {len(saved['items'])} entries: {str(saved['items'])[:60]}"
    return repr(saved)[:100]
