"""Compares the last checkpoints of two runs: every tensor, value and file, by the names that the user knows."""

import json
import struct
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from supervisor.protocol import layout
from supervisor.protocol.checkpoints import manifest, selection
from supervisor.protocol.checkpoints.manifest import Manifest
from supervisor.protocol.damage import BundleError
from supervisor.protocol.proof import Difference
from supervisor.prove.comparison.arrays import differing_arrays, differing_values
from supervisor.prove.comparison.tensors import TensorDifference, differing_tensors

LOOP_STATE = "loop_state.npz"
TORCH_STATE = "torch.pt"
_NOT_STATE = frozenset({"attempt", "body", "format", "step"})
"""The number of steps is compared with the records; `body` tells of the epoch's head, for messages."""
_IN_WORDS = {
    "position": "position in the data", "seeds": "random state of Keras layers", "passes": "passes over the data",
    "script": "what the script sets", "data": "description of the data",
}  # fmt: skip
RANDOM = "random generator"


@dataclass(frozen=True, slots=True)
class FinalCheckpoint:
    """The newest checkpoint of a run, proven whole."""

    folder: Path
    step: int
    written: Manifest

    @property
    def state_bytes(self) -> int:
        """Its size, without the manifest."""
        return sum(file.size for file in self.written.files)


def last_checkpoint(directory: Path) -> FinalCheckpoint | None:
    """The newest whole checkpoint in a directory; None if there is none. Raises OSError."""
    for name in selection.committed_checkpoints(directory):
        try:
            written = manifest.verify_checkpoint(directory / str(name))
        except manifest.ManifestError:
            continue
        return FinalCheckpoint(directory / str(name), name.step, written)
    return None


class CannotCompare(Exception):
    """Whether two files hold the same could not be found out; the text says why."""


TorchComparison = Callable[[Path, Path], Sequence[TensorDifference]]
"""Compares two files of PyTorch's in the job's own interpreter. Raises CannotCompare."""


def differing_state(one: FinalCheckpoint, other: FinalCheckpoint, compare_torch: TorchComparison) -> list[Difference]:
    """What of the state differs, with the step of the checkpoints.

    Raises OSError, and CannotCompare if nothing differs but what could not be compared.
    """
    first, second = ({file.name: file.hash for file in checkpoint.written.files} for checkpoint in (one, other))
    names = [name for name in sorted(first.keys() | second.keys()) if first.get(name) != second.get(name)]
    differences: list[TensorDifference] = []
    failure: CannotCompare | None = None
    if any(name.startswith(f"{layout.PREFIX}.") for name in names):
        differences += _readable(f"{layout.PREFIX}.*", lambda: differing_tensors(one.folder, other.folder))
        names = [name for name in names if not name.startswith(f"{layout.PREFIX}.")]
    for name in names:
        if name == LOOP_STATE:
            differences += _readable(name, lambda: differing_values(one.folder / LOOP_STATE, other.folder / LOOP_STATE))
        elif name not in first or name not in second:
            differences.append(
                TensorDifference(f"file {name}", *(_presence(name in hashes) for hashes in (first, second)))
            )
        else:
            try:
                differences += _readable(name, partial(_of_file, one.folder / name, other.folder / name, compare_torch))
            except CannotCompare as error:
                failure = error
    if failure is not None and not differences:
        raise failure
    return [Difference(difference.name, one.step, difference.one, difference.other) for difference in differences]


def _presence(is_there: bool) -> str:
    return "present" if is_there else "absent"


def _of_file(one: Path, other: Path, compare_torch: TorchComparison) -> Iterator[TensorDifference]:
    if one.name == layout.STATE:
        yield from _of_state_file(json.loads(one.read_bytes()), json.loads(other.read_bytes()))
    elif one.name == TORCH_STATE:
        yield from compare_torch(one, other)
    elif one.suffix in (".npz", ".npy"):
        yield from differing_arrays(one, other)
    else:
        yield _other_bytes(one.name)


def _other_bytes(name: str) -> TensorDifference:
    return TensorDifference(f"file {name}", "its bytes", "other bytes")


def _readable(name: str, compare: Callable[[], Iterator[TensorDifference]]) -> list[TensorDifference]:
    """The differences; of files whose format is not what their names say, that their bytes are others."""
    try:
        return list(compare())
    except (ValueError, KeyError, TypeError, SyntaxError, struct.error, BundleError, zipfile.BadZipFile):
        return [_other_bytes(name)]


def _of_state_file(one: dict[str, Any], other: dict[str, Any]) -> Iterator[TensorDifference]:
    for key in sorted((one.keys() | other.keys()) - _NOT_STATE):
        mine, theirs = one.get(key), other.get(key)
        if mine == theirs:
            continue
        if key == "generators" and isinstance(mine, dict) and isinstance(theirs, dict):
            for name in sorted(mine.keys() | theirs.keys()):
                if mine.get(name) != theirs.get(name):
                    yield TensorDifference(f"{RANDOM} {name}", _short(mine.get(name)), _short(theirs.get(name)))
        elif key in ("metrics", "position") and isinstance(mine, dict) and isinstance(theirs, dict):
            word = "last metric" if key == "metrics" else "position in the data:"
            for name in sorted(mine.keys() | theirs.keys()):
                if mine.get(name) != theirs.get(name):
                    yield TensorDifference(f"{word} {name}", _short(mine.get(name)), _short(theirs.get(name)))
        else:
            yield TensorDifference(_IN_WORDS.get(key, key), _short(mine), _short(theirs))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
