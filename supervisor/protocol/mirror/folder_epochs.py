"""By which epoch each checkpoint in a job's folder counts, and what the folder says of that.

A checkpoint that was fetched says so itself: a small file in its folder (`FETCHED`) that is written before the rename
which makes it exist, so there is no moment at which it could be taken for one of this host's.

One that this host wrote counts by what `EPOCH_HELD` says:

    {"epoch": 1, "since": [[5, 2]], "begins": 3, "object": "…", "given_up": [[200, 6]], "store": "s3://bucket/runs/j"}

Epoch 1 was held here. The checkpoints of attempt 5 and later were written after this host had seen that the run is at
epoch 2, from what counted then: they are not what epoch 2 left behind. `begins`: this host was about to create epoch 3,
with this content; if the store has it, it is held. `given_up`: the checkpoints of step 200 and later of attempts before
the 6th are given up here, as training diverged or an operator chose an earlier step; the next epoch of this host will
leave them behind, and until the store has it they count no more for this host. Once an epoch is held, all that is here
goes with it, and `since` and `given_up` are empty again. `store`: the URL of the run that all this is about. Every
change is one rename, made before what it speaks of: a line of `since` speaks of attempts that have written nothing yet.

A folder without the file has not been used with any run. Whatever has been written into it by then belongs to no run in
the store, so the first fetch into a folder leaves the file there, also if it has nothing to say. One whose file names
another store is such a folder too: its numbers are not those of the epochs here (earlier versions named none).

A file that is there and can't be read, or is damaged, says nothing about what counts here, so nothing is concluded:
every reader raises, and the host goes on as with a store that it can't reach. Only without a file was no epoch held.
"""

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints.directory import highest_attempt
from supervisor.protocol.formats import UnusableFile, check_format
from supervisor.protocol.layout import CheckpointName, parse_name, parse_part
from supervisor.protocol.mirror.keys import Epoch, decode_epoch, encode_epoch
from supervisor.protocol.wire.codec import ProtocolError, decode_record, decode_stored, encode_record, parse_object
from supervisor.protocol.wire.limits import Range

FORMAT = 2  # of EPOCH_HELD; 1 had no `since`
FETCHED_FORMAT = 1
MAX_RECORD_BYTES = 16384
MAX_SINCE = 50  # lines; each is an epoch of another host after which this one went on and could not upload
MAX_FETCHED_BYTES = 200

EVERY_ATTEMPT = 1_000_000_000  # no name has such a number
MAX_GIVEN_UP = 50  # lines; each is a start from an earlier checkpoint while no epoch could be begun

_Number = Annotated[int, Range(1, 1 << 62)]


@dataclass(frozen=True, slots=True)
class _Record:
    """The content of EPOCH_HELD. `since`: first attempt and epoch, oldest first. `object`: the content of `begins`.
    `given_up`: from which step on, and the first attempt that began after that.
    """

    epoch: _Number | None = None
    since: tuple[tuple[_Number, _Number], ...] | None = None
    begins: _Number | None = None
    object: str | None = None
    given_up: tuple[tuple[Annotated[int, Range(0, 1 << 62)], _Number], ...] | None = None
    store: str | None = None
    format: int = FORMAT

    @property
    def begun(self) -> Epoch | None:
        """The epoch that was about to be created."""
        if self.begins is None or self.object is None:
            return None
        try:
            return decode_epoch(self.begins, self.object.encode())
        except ProtocolError:
            return None


@dataclass(frozen=True, slots=True)
class _Fetched:
    """The content of FETCHED."""

    epoch: _Number
    format: int = FETCHED_FORMAT


class DamagedRecord(UnusableFile):
    """EPOCH_HELD is damaged, so what of its folder counts is not known."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            errno.EBADMSG,
            f"{path}, which says which checkpoints beside it still count, is damaged ({why}); delete it if this host "
            f"was the last one that trained, and otherwise the checkpoints too: the mirror has what counts",
        )


def local_checkpoints(folder: Path) -> list[CheckpointName]:
    """The names of the checkpoints in a folder; none if there is no folder."""
    try:
        return [name for entry in folder.iterdir() if (name := parse_name(entry.name)) is not None]
    except FileNotFoundError:
        return []


def epochs_of_checkpoints(folder: Path, epochs: Mapping[int, Epoch]) -> dict[CheckpointName, int | None]:
    """By checkpoint in the folder: the epoch by which it counts; None: this host knew of none when it wrote it.

    Raises OSError, as all below do that read what the folder says.
    """
    record = _read_record(folder)
    held = _held(record, epochs)
    since = () if held != record.epoch else record.since or ()
    by_checkpoint: dict[CheckpointName, int | None] = {}
    for name in local_checkpoints(folder):
        if not (folder / str(name) / layout.MANIFEST).exists():
            continue
        fetched = fetched_epoch(folder / str(name))
        known = [epoch for attempt, epoch in since if attempt <= name.attempt]
        by_checkpoint[name] = fetched if fetched is not None else known[-1] if known else held
    return by_checkpoint


def is_of_other_store(folder: Path, store: str) -> bool:
    """Whether the folder was used with a run in a store, and last with another one than that at this URL."""
    return _read_record(folder).store not in (None, store)


def of_no_run(folder: Path, store: str) -> list[CheckpointName]:
    """The checkpoints here, if the folder was not used with the run at this URL yet; none if it was. Raises OSError."""
    is_elsewhere = is_of_other_store(folder, store)
    if not is_elsewhere and (folder / layout.EPOCH_HELD).exists():
        return []
    committed = [name for name in local_checkpoints(folder) if (folder / str(name) / layout.MANIFEST).exists()]
    if not is_elsewhere and any(fetched_epoch(folder / str(name)) is not None for name in committed):
        return []
    return committed


def record_store(folder: Path, store: str) -> None:
    """Notes with which run, by its URL, the folder is used from now on; what it says of another one is over.

    Raises OSError.
    """
    record = _read_record(folder)
    if record.store != store:
        _write_record(folder, _Record(store=store) if record.store is not None else replace(record, store=store))


def held_epoch(folder: Path, epochs: Mapping[int, Epoch]) -> int | None:
    """The epoch that this host held last; None if it never had one.

    One that this host was about to begin is held if the store has it: the process was killed before it knew.
    """
    return _held(_read_record(folder), epochs)


def known_epoch(folder: Path, epochs: Mapping[int, Epoch]) -> int:
    """The newest epoch that this host held, or began an attempt after; 0 if it knows of none."""
    record = _read_record(folder)
    return max(_held(record, epochs) or 0, *(epoch for _, epoch in record.since or ()), 0)


def begun_epoch(folder: Path) -> Epoch | None:
    """The epoch that this host was about to begin when it was last heard of; None: it knows what became of it."""
    return _read_record(folder).begun


def record_begin(folder: Path, epoch: Epoch) -> None:
    """Notes, before it is created, which epoch is going to be begun. Raises OSError."""
    begins, content = epoch.number, encode_epoch(epoch).decode()
    _write_record(folder, replace(_read_record(folder), begins=begins, object=content))


def record_seen(folder: Path, first_attempt: int, epoch: int, epochs: Mapping[int, Epoch]) -> None:
    """Notes, before an attempt begins, at which epoch (0: none) the run was seen: it goes on from what counts there.

    Raises OSError.
    """
    record = _read_record(folder)
    if epoch > known_epoch(folder, epochs):
        since = (*(record.since or ()), (first_attempt, epoch))[-MAX_SINCE:]
        _write_record(folder, replace(record, since=since))


def hold_epoch(folder: Path, number: int, leaves_behind: bool = True) -> None:
    """Notes which epoch this host holds; all that it wrote counts by it from now on. Raises OSError.

    `leaves_behind`: the epoch leaves behind what this host gave up before.
    """
    before = _read_record(folder)
    given_up = None if leaves_behind else before.given_up
    _write_record(folder, _Record(number, given_up=given_up, store=before.store))


def record_given_up(
    folder: Path, below: int, diverged: int | None = None, mirror: str | None = None, first: int = 0
) -> Callable[[], None]:
    """Notes, before it is carried out, that checkpoints of that step and later are given up here; those of attempts
    that began after `diverged` are not, in which training did (None: none has begun yet). `first`: the
    attempt that is the first to begin after an order, as another host may have had those before it.

    Of a folder that knows of no epoch yet, nothing is noted, unless the job has a `mirror`, the URL of its run: then
    whatever that has, from whichever attempt; of any step, if the folder was not used with that run: nothing says that
    it is of the same training. An epoch that begins anew would leave it behind, and may have to wait for the store.
    Returns what takes it back. Raises OSError, as that does.
    """
    is_new, record = not (folder / layout.EPOCH_HELD).exists(), _read_record(folder)
    if mirror is not None and (is_new or record.store not in (None, mirror)):
        _write_record(folder, _Record(given_up=((0, EVERY_ATTEMPT),), store=mirror))
        if is_new:
            return lambda: (folder / layout.EPOCH_HELD).unlink(missing_ok=True)
        return lambda: _write_record(folder, record)
    if replace(record, store=None) == _Record():
        if mirror is not None:
            _write_record(folder, replace(record, given_up=((below, EVERY_ATTEMPT),)))
        return lambda: _take_back_given_up(folder, below)
    parts = [name.attempt for entry in folder.glob(f"*{layout.PART}") if (name := parse_part(entry.name)) is not None]
    highest = max((highest_attempt(folder), *parts))
    has_own = bool(parts) or any(fetched_epoch(folder / str(name)) is None for name in local_checkpoints(folder))
    # with none of its own here, the disk was replaced: what the attempts until then saved is in the store alone
    last = highest if diverged is None else min(diverged, highest) if has_own else diverged
    line = (below, max(first, 1 + last))
    lines = [*(pair for pair in record.given_up or () if pair != line), line]
    _write_record(folder, replace(record, given_up=tuple(lines[-MAX_GIVEN_UP:])))
    return lambda: _take_back_given_up(folder, below)


def _take_back_given_up(folder: Path, below: int) -> None:
    """Nothing of that step and later is given up, as the order for it was withdrawn."""
    record = _read_record(folder)
    if record.given_up:
        lines = tuple(line for line in record.given_up if line[0] != below)
        _write_record(folder, replace(record, given_up=lines or None))


def given_up_in(folder: Path) -> Callable[[CheckpointName], bool]:
    """Whether this host has given a checkpoint up since its last epoch began. Raises OSError."""
    lines = _read_record(folder).given_up or ()
    return lambda name: any(name.step >= below and name.attempt < first for below, first in lines)


def fetched_epoch(checkpoint: Path) -> int | None:
    """The epoch that a checkpoint was fetched from; None if it was written here.

    0, which is before any, if what says it is damaged: the store has that one too, unless it was left behind. Raises
    OSError.
    """
    try:
        content = durable.read_file(checkpoint / layout.FETCHED, MAX_FETCHED_BYTES)
    except FileNotFoundError:
        return None
    try:
        body = parse_object(content)
        check_format(body, FETCHED_FORMAT, layout.FETCHED)
        return decode_record(body, _Fetched, layout.FETCHED).epoch
    except ValueError:
        return 0


def encode_fetched(epoch: int) -> bytes:
    """The content of the file that says where a checkpoint came from."""
    return encode_record(_Fetched(epoch)).encode()


def _held(record: _Record, epochs: Mapping[int, Epoch]) -> int | None:
    begun = record.begun
    return begun.number if begun is not None and epochs.get(begun.number) == begun else record.epoch


def _write_record(folder: Path, record: _Record) -> None:
    durable.make_folder(folder)
    durable.write_file(folder / layout.EPOCH_HELD, encode_record(replace(record, format=FORMAT)).encode())


def _read_record(folder: Path) -> _Record:
    """What the folder says. Raises OSError: what can't be read, or not believed, is no folder that held nothing."""
    path = folder / layout.EPOCH_HELD
    try:
        content = durable.read_file(path, MAX_RECORD_BYTES)
    except FileNotFoundError:
        return _Record()
    try:
        body = parse_object(content)
        check_format(body, FORMAT, layout.EPOCH_HELD)
        record, damaged = decode_stored(body, _Record, layout.EPOCH_HELD)
    except ValueError as error:
        raise DamagedRecord(path, str(error)) from error
    if damaged:
        raise DamagedRecord(path, damaged[0])
    return record
