"""Reads the tensors of a TensorFlow checkpoint by name, without TensorFlow, and says where two of them differ."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from supervisor.protocol import layout
from supervisor.protocol.tensorbundle import entry as bundle_entry
from supervisor.protocol.tensorbundle import sstable
from supervisor.protocol.tensorbundle.entry import TensorEntry
from supervisor.protocol.tensorbundle.verify import INDEX, OBJECT_GRAPH

_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
_FORMATS = {1: "f", 2: "d", 3: "i", 4: "B", 5: "h", 6: "b", 9: "q", 10: "?", 17: "H", 19: "e", 22: "I", 23: "Q"}
"""How struct names TensorFlow's types of numbers."""
SHOWN = 1 << 20  # bytes that are searched for the first element that differs


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """A tensor that is not the same bits. Texts: its first element that differs, or what else is different."""

    name: str
    one: str
    other: str


def differing_tensors(one: Path, other: Path) -> Iterator[TensorDifference]:
    """The tensors of two checkpoints' folders that differ, in the order of their names.

    Raises OSError, ValueError or BundleError if one can't be read.
    """
    (first, mine_in), (second, theirs_in) = _entries(one), _entries(other)
    for name in sorted(first.keys() | second.keys()):
        mine, theirs = first.get(name), second.get(name)
        if mine is None or theirs is None:
            yield TensorDifference(
                shown_name(name), *("absent" if entry is None else "present" for entry in (mine, theirs))
            )
        elif name != OBJECT_GRAPH:
            contents = _content(one, mine, mine_in), _content(other, theirs, theirs_in)
            if contents[0] != contents[1]:
                yield _difference(name, mine, *contents)


def shown_name(name: str) -> str:
    """A tensor's name as a user knows it: `model/dense/kernel`."""
    return name.removesuffix(_SUFFIX).replace("/.OPTIMIZER_SLOT/", " in ").replace("/.ATTRIBUTES/", "/")


def _entries(folder: Path) -> tuple[dict[str, TensorEntry], int]:
    """The tensors by name, and in how many data files they lie: one checkpoint may have more of them than another."""
    entries: dict[str, TensorEntry] = {}
    shards = 1
    for number, (key, value) in enumerate(sstable.read_table(folder / f"{layout.PREFIX}{INDEX}")):
        if number == 0:
            shards = bundle_entry.parse_header(key, value).shards
        elif (entry := bundle_entry.parse_tensor(key, value)) is not None:
            entries[entry.name] = entry
    return entries, shards


def _content(folder: Path, entry: TensorEntry, shards: int) -> bytes:
    with (folder / f"{layout.PREFIX}.data-{entry.shard:05d}-of-{shards:05d}").open("rb") as file:
        file.seek(entry.offset)
        return file.read(entry.size)


def _difference(name: str, entry: TensorEntry, one: bytes, other: bytes) -> TensorDifference:
    if len(one) != len(other) or (kind := _FORMATS.get(entry.dtype)) is None:
        return TensorDifference(shown_name(name), f"{len(one)} bytes", f"{len(other)} other bytes")
    return TensorDifference(shown_name(name), *first_difference(one, other, kind, entry.dimensions == 0))


def first_difference(one: bytes, other: bytes, kind: str, is_scalar: bool = False) -> tuple[str, str]:
    """The first element that differs, of both. `kind`: as struct names it."""
    width = struct.calcsize(kind)
    for at in range(0, min(len(one), len(other), SHOWN), width):
        if one[at : at + width] != other[at : at + width]:
            where = "" if is_scalar else f"element {at // width}: "
            values = (struct.unpack(f"<{kind}", content[at : at + width])[0] for content in (one, other))
            mine, theirs = (f"{where}{value!r}" for value in values)
            return mine, theirs
    return "its bytes", "other bytes, far behind its beginning"
