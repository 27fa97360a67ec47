"""What dead workers left in memory and no disk has taken yet, on its way to the daemon that this one becomes: `reload`.

And what live ones have there: if one dies before that daemon adopts it, nobody else has it. One that is adopted names
it once more.

A descriptor outlives execve(2) if it is inheritable. A file in runtime_dir says which ones are what. It counts only for
the process that wrote it, and only if the descriptor leads to the file that it names. So it may be missing, or left
behind by a daemon that was killed: then there is nothing to take over. Its name has the state folder's identity: a
daemon with another one may have come to runtime_dir meanwhile.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import structlog

from supervisor.host.memory_tier.held_memory import HeldMemory
from supervisor.protocol import durable
from supervisor.protocol.formats import NewerFormat, check_format
from supervisor.protocol.wire.codec import decode_record, encode_record, parse_object
from supervisor.protocol.wire.limits import Items

NAME = "memory.json"
FORMAT = 1
MAX_MEMORIES = 10_000
MAX_BYTES = 2 * MAX_MEMORIES * 8192  # of one: a folder's path of at most 4096 bytes, and names

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LeftMemory:
    """What the worker of an attempt left, or has, there. `user`, `directory`: of the job as it was configured then;
    `mount` and `restored` as in SalvageRequest.
    """

    program: str
    user: str | None
    directory: str
    attempt: int
    mount: str | None
    restored: str | None
    held: HeldMemory


@dataclass(frozen=True, slots=True)
class MemoriesHandedOver:
    """`left`: by program, what a dead worker left. `held`: what live ones had; its `mount` and `restored` are None."""

    left: Mapping[str, LeftMemory] = field(default_factory=dict)
    held: tuple[LeftMemory, ...] = ()


@dataclass(frozen=True, slots=True)
class _MemoryEntry:
    program: str
    attempt: int
    descriptor: int
    device: int
    inode: int
    owner: int
    size_bytes: int
    directory: str
    user: str | None = None
    mount: str | None = None
    restored: str | None = None


@dataclass(frozen=True, slots=True)
class _MemoryList:
    pid: int
    memories: Annotated[tuple[_MemoryEntry, ...], Items(MAX_MEMORIES)] = ()
    held: Annotated[tuple[_MemoryEntry, ...], Items(MAX_MEMORIES)] = ()
    format: int = FORMAT


def hand_over(runtime_dir: Path, state_dir: Path, left: Iterable[LeftMemory], held: Iterable[LeftMemory] = ()) -> None:
    """Leaves it to the daemon that is executed in this process next. Never raises: what can't be left is said.

    `left`: of dead workers; `held`: of live ones.
    """
    entries, live = tuple(map(_entry, left)), tuple(map(_entry, held))
    if not (entries or live):
        return
    try:
        _file(runtime_dir, state_dir).write_text(encode_record(_MemoryList(os.getpid(), entries, live)))
        for entry in (*entries, *live):
            os.set_inheritable(entry.descriptor, True)
    except OSError as error:
        effect = "what dead workers left in memory, and no disk took, is lost"
        log.error(
            "memory.not_handed_over", programs=[entry.program for entry in entries], error=str(error), effect=effect
        )


def _entry(memory: LeftMemory) -> _MemoryEntry:
    descriptor = memory.held.descriptor
    status = os.fstat(descriptor)
    place = descriptor, status.st_dev, status.st_ino, memory.held.owner, memory.held.size_bytes
    job = memory.directory, memory.user, memory.mount, memory.restored
    return _MemoryEntry(memory.program, memory.attempt, *place, *job)


def take_over(runtime_dir: Path, state_dir: Path) -> MemoriesHandedOver:
    """What the daemon before has left in this process. Call it once, before anything is started."""
    path = _file(runtime_dir, state_dir)
    try:
        content = durable.read_file(path, MAX_BYTES)
        path.unlink()
    except OSError:
        return MemoriesHandedOver()
    try:
        fields = parse_object(content)
        check_format(fields, FORMAT, NAME)
        stored = decode_record(fields, _MemoryList, NAME)
    except (ValueError, NewerFormat) as error:
        log.error("memory.not_taken_over", error=str(error), effect="what the daemon before held in memory is lost")
        return MemoriesHandedOver()
    if stored.pid != os.getpid():
        return MemoriesHandedOver()
    left = {entry.program: _left(entry) for entry in stored.memories if _is_there(entry)}
    return MemoriesHandedOver(left, tuple(_left(entry) for entry in stored.held if _is_there(entry)))


def _file(runtime_dir: Path, state_dir: Path) -> Path:
    try:
        status = state_dir.stat()
    except OSError:
        return runtime_dir / NAME
    return runtime_dir / f"{status.st_dev:x}-{status.st_ino:x}.{NAME}"


def _is_there(entry: _MemoryEntry) -> bool:
    try:
        status = os.fstat(entry.descriptor)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == (entry.device, entry.inode)


def _left(entry: _MemoryEntry) -> LeftMemory:
    os.set_inheritable(entry.descriptor, False)
    held = HeldMemory.of_descriptor(entry.descriptor, entry.owner, entry.size_bytes)
    return LeftMemory(entry.program, entry.user, entry.directory, entry.attempt, entry.mount, entry.restored, held)
