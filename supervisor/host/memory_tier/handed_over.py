"""What dead workers left in memory and no disk has taken yet, on its way to the daemon that this one becomes: `reload`.

A descriptor outlives execve(2) if it is inheritable. A file in runtime_dir says which ones are what. It counts only for
the process that wrote it, and only if the descriptor leads to the file that it names. So it may be missing, or left
behind by a daemon that was killed: then there is nothing to take over. Its name has the state folder's identity: a
daemon with another one may have come to runtime_dir meanwhile.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
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
MAX_BYTES = MAX_MEMORIES * 8192  # of one: a folder's path of at most 4096 bytes, and names

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LeftMemory:
    """What the dead worker of an attempt left. `user`, `directory`: of the job as it was configured then; `mount` and
    `restored` as in SalvageRequest.
    """

    program: str
    user: str | None
    directory: str
    attempt: int
    mount: str | None
    restored: str | None
    held: HeldMemory


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
    format: int = FORMAT


def hand_over(runtime_dir: Path, state_dir: Path, left: Iterable[LeftMemory]) -> None:
    """Leaves it to the daemon that is executed in this process next. Never raises: what can't be left is said."""
    entries = []
    for memory in left:
        descriptor = memory.held.descriptor
        status = os.fstat(descriptor)
        place = descriptor, status.st_dev, status.st_ino, memory.held.owner, memory.held.size_bytes
        job = memory.directory, memory.user, memory.mount, memory.restored
        entries.append(_MemoryEntry(memory.program, memory.attempt, *place, *job))
    if not entries:
        return
    try:
        _file(runtime_dir, state_dir).write_text(encode_record(_MemoryList(os.getpid(), tuple(entries))))
        for entry in entries:
            os.set_inheritable(entry.descriptor, True)
    except OSError as error:
        effect = "what dead workers left in memory, and no disk took, is lost"
        log.error(
            "memory.not_handed_over", programs=[entry.program for entry in entries], error=str(error), effect=effect
        )


def take_over(runtime_dir: Path, state_dir: Path) -> dict[str, LeftMemory]:
    """By program, what the daemon before has left in this process. Call it once, before anything is started."""
    path = _file(runtime_dir, state_dir)
    try:
        content = durable.read_file(path, MAX_BYTES)
        path.unlink()
    except OSError:
        return {}
    try:
        fields = parse_object(content)
        check_format(fields, FORMAT, NAME)
        stored = decode_record(fields, _MemoryList, NAME)
    except (ValueError, NewerFormat) as error:
        log.error("memory.not_taken_over", error=str(error), effect="what the daemon before held in memory is lost")
        return {}
    entries = stored.memories if stored.pid == os.getpid() else ()
    return {entry.program: _left(entry) for entry in entries if _is_there(entry)}


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
