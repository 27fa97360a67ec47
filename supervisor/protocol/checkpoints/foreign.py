"""Checkpoints of other programs (tf.train.CheckpointManager, TF1's Saver): found, ordered, proven, never touched.

They have no manifest; the checksums inside them are the proof. TensorFlow's state file `checkpoint` says which of
several families of files in a folder is the main one, and what should be there; it is not asked which is newest.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from supervisor.protocol import durable, layout
from supervisor.protocol.damage import BundleError, RejectedCheckpoint
from supervisor.protocol.tensorbundle import verify
from supervisor.protocol.tensorbundle.verify import INDEX, Bundle

MAX_STATE_BYTES = 1 << 20
MAX_NAME_BYTES = 230  # of a prefix: with `.data-00000-of-00001` a file's name
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"

_DATA = re.compile(r"(.+)\.data-\d{5}-of-\d{5}")
_STATE_LINE = re.compile(rb'\s*(?:all_)?model_checkpoint_path(s?)\s*:\s*"((?:[^"\\\n]|\\.)*)"\s*')
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|.)")
_PLAIN = {b"n": b"\n", b"t": b"\t", b"r": b"\r"}
_LAST_NUMBER = re.compile(r"(\d{1,18})(?!.*\d)")
_STEP_NAMES = (
    re.compile(r"(?:.*/)?global_step"),
    re.compile(r"step"),
    re.compile(r"(?:.*/)?_?iter(?:ations)?"),  # of an optimizer
)


@dataclass(frozen=True, slots=True)
class ForeignCheckpoint:
    """A proven checkpoint of another program. `step_source`: in words, where its step was read."""

    bundle: Bundle
    step: int
    step_source: str


def select_newest_whole(prefixes: Iterable[Path]) -> tuple[ForeignCheckpoint | None, tuple[RejectedCheckpoint, ...]]:
    """The first that is whole, and those refused before it.

    Raises OSError if one can't be read for a reason that says nothing about it.
    """
    refused = []
    for prefix in prefixes:
        try:
            bundle = verify.verify_bundle(prefix)
        except BundleError as error:
            refused.append(RejectedCheckpoint(prefix.name, explain_rejection(prefix, error)))
        else:
            return ForeignCheckpoint(bundle, *step_of_bundle(bundle)), tuple(refused)
    return None, tuple(refused)


def explain_rejection(prefix: Path, error: BundleError) -> str:
    """Why a checkpoint was refused, in words."""
    if prefix.is_file():
        return "is one file, so in TensorFlow's V1 format, which is not supported; save it again in V2"
    return str(error)


def prefixes_at(place: Path) -> list[Path]:
    """The prefixes at a place that a person named: those in a folder, newest first, or the one that it is."""
    if place.is_dir():
        return prefixes_in(place)
    try:
        is_prefix = any(_prefix_of(entry.name) == place.name for entry in place.parent.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [place] if is_prefix else []


def prefixes_in(folder: Path) -> list[Path]:
    """Every prefix that has an index or data in a folder, or should have by its state file, newest first.

    Raises OSError if it can't be read; a folder that does not exist has none.
    """
    named = _names_in_state_file(folder / layout.POINTER)
    try:
        names = {name for entry in folder.iterdir() if (name := _prefix_of(entry.name)) is not None} | set(named)
    except FileNotFoundError:
        return []
    main = _family(named[0]) if named else None
    return [folder / name for name in sorted(names, key=lambda name: _age_order(folder, name, main), reverse=True)]


def _prefix_of(file: str) -> str | None:
    if file.endswith(INDEX) and len(file) > len(INDEX):
        return file.removesuffix(INDEX)
    match = _DATA.fullmatch(file)
    return match[1] if match else None


def _age_order(place: Path, name: str, main: str | None) -> tuple[bool, int, int, str]:
    """Sorts oldest first: of the main family last, by number, then by time."""
    try:
        written_at = (place / f"{name}{INDEX}").stat().st_mtime_ns
    except OSError:
        written_at = 0
    number = number_in(name)
    return main is not None and _family(name) == main, -1 if number is None else number, written_at, name


def number_in(name: str) -> int | None:
    """The last number in a name: 1200 of `model.ckpt-1200`."""
    match = _LAST_NUMBER.search(name)
    return int(match[1]) if match else None


def _family(name: str) -> str:
    return _LAST_NUMBER.sub("#", name)


def _names_in_state_file(path: Path) -> list[str]:
    """The names in a state file, the one it calls newest first; none if it is missing or anything else.

    Paths in it are cut to their last part: the folder may have been moved. Our own pointer names none.
    """
    try:
        content = durable.read_file(path, MAX_STATE_BYTES)
    except OSError:
        return []
    newest: list[str] = []
    listed: list[str] = []
    for line in content.splitlines():
        match = _STATE_LINE.fullmatch(line)
        if match is None:
            continue
        named = PurePosixPath(_ESCAPE.sub(_unescaped, match[2]).decode(errors="replace"))
        is_ours = layout.parse_name(named.parent.name) is not None
        if named.name and "\0" not in named.name and len(named.name.encode()) <= MAX_NAME_BYTES and not is_ours:
            (listed if match[1] else newest).append(named.name)
    return list(dict.fromkeys([*newest, *listed]))


def _unescaped(match: re.Match[bytes]) -> bytes:
    code = match[1]
    if code[:1] == b"x" and len(code) > 1:
        return bytes([int(code[1:], 16)])
    if code.isdigit() and code < b"8":
        return bytes([int(code, 8) & 0xFF])
    return _PLAIN.get(code, code)


def step_of_bundle(bundle: Bundle) -> tuple[int, str]:
    """The step of a checkpoint, and in words where it was read.

    A step counter in it wins over its name, as CheckpointManager numbers its checkpoints by saves and not by steps.
    """
    counters = {name.removesuffix(VALUE): value for name, value in bundle.counters.items() if value >= 0}
    for wanted in _STEP_NAMES:
        names = [name for name in counters if wanted.fullmatch(name)]
        if names:
            chosen = max(names, key=lambda name: counters[name])
            return counters[chosen], f"its {chosen}"
    number = number_in(bundle.prefix.name)
    if number is not None and number != counters.get("save_counter"):
        return number, "the number in its name"
    if "save_counter" in counters:
        return counters["save_counter"], "its save_counter, as it holds no step"
    return (0, "nothing: it holds no step") if number is None else (number, "the number in its name")
