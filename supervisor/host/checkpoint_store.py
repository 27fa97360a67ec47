"""Checkpoint directories, seen from the event loop: every look at the disk happens in a thread.

A dead file system may hold a thread for ever. It then holds the questions about that one directory, never the loop,
another job, or the end of the daemon.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from supervisor.protocol import layout
from supervisor.protocol.checkpoints import manifest, rollback, selection
from supervisor.protocol.checkpoints.manifest import Manifest, ManifestError
from supervisor.protocol.checkpoints.selection import Selection
from supervisor.protocol.damage import RejectedCheckpoint

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class ListedCheckpoint:
    """One checkpoint as a list shows it. `valid`: proven whole or proven damaged, None if not looked at.

    `reason`: why it is not valid. `created_wall_at`: Unix time.
    """

    name: str
    step: int
    attempt: int
    created_wall_at: float | None
    size_bytes: int | None
    valid: bool | None
    reason: str | None
    quarantined: bool


def _set_unfit_aside(directory: Path, unfit: Mapping[str, str]) -> tuple[RejectedCheckpoint, ...]:
    found = [name for name in selection.committed(directory) if str(name) in unfit]
    for name in found:
        selection.quarantine(directory, name, unfit[str(name)])
    return tuple(RejectedCheckpoint(str(name), unfit[str(name)]) for name in found)


class CheckpointStore:
    """The questions the daemon asks, answered one at a time for each directory."""

    def __init__(self) -> None:
        self._lanes: dict[Path, deque[Callable[[], None]]] = {}
        self._lock = threading.Lock()

    async def select(self, directory: Path, initial: Path | None = None, avoid: Collection[str] = ()) -> Selection:
        """The newest whole checkpoint, bad ones set aside: see `checkpoints.select`, whose errors it raises."""
        return await self._ask(directory, lambda: selection.select(directory, initial, avoid))

    async def roll_back(self, directory: Path, before: int) -> tuple[RejectedCheckpoint, ...]:
        """Sets aside what was saved at step `before` or later, if something whole is older: see `rollback`."""
        return await self._ask(directory, lambda: rollback.roll_back(directory, before))

    async def quarantine(self, directory: Path, unfit: Collection[tuple[str, str]]) -> tuple[RejectedCheckpoint, ...]:
        """Puts these, by name and with why, into quarantine, as far as they are there. Raises OSError."""
        return await self._ask(directory, lambda: _set_unfit_aside(directory, dict(unfit)))

    async def list_checkpoints(self, directory: Path, verify: bool) -> list[ListedCheckpoint]:
        """All checkpoints, newest first, then those in quarantine. `verify` reads every byte of them.

        Raises OSError if the directory can't be read.
        """
        return await self._ask(directory, lambda: _listing(directory, verify))

    async def highest_attempt(self, directory: Path) -> int:
        """The highest attempt that ever wrote here, as far as names tell, unfinished and bad ones too; 0 if none did.

        Raises OSError if the directory can't be read.
        """
        return await self._ask(directory, lambda: selection.highest_attempt(directory))

    async def device_number(self, directory: Path) -> int:
        """The number of the device it is on. Raises OSError if the directory can't be looked at."""
        return await self._ask(directory, lambda: directory.stat().st_dev)

    async def _ask(self, directory: Path, work: Callable[[], Answer]) -> Answer:
        future: Future[Answer] = Future()
        with self._lock:
            lane = self._lanes.get(directory)
            if lane is None:
                lane = deque()
                # A daemon thread, not an executor's: those are waited for when the interpreter ends.
                threading.Thread(target=self._drain, args=(directory, lane), name="checkpoints", daemon=True).start()
                self._lanes[directory] = lane  # only now: the host may have no thread to spare
            lane.append(lambda: _answer(future, work))
        return await asyncio.wrap_future(future)

    def _drain(self, directory: Path, lane: deque[Callable[[], None]]) -> None:
        while True:
            with self._lock:
                if not lane:
                    del self._lanes[directory]
                    return
                work = lane.popleft()
            work()


def _answer(future: Future[Answer], work: Callable[[], Answer]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - it is raised where it was asked
        future.set_exception(error)
    else:
        future.set_result(result)


def _listing(directory: Path, verify: bool) -> list[ListedCheckpoint]:
    committed = (_look_at(directory / str(name), name, verify) for name in selection.committed(directory))
    quarantine = directory / layout.QUARANTINE
    aside = (_set_aside(quarantine, each) for each in selection.quarantined(directory))
    return [*filter(None, committed), *filter(None, aside)]


def _look_at(folder: Path, name: layout.CheckpointName, verify: bool) -> ListedCheckpoint | None:
    try:
        found = manifest.verify(folder) if verify else manifest.read(folder)
    except ManifestError as error:
        if name not in selection.committed(folder.parent):
            return None  # retention took it in the meantime
        return _listed(folder.name, name, _readable_manifest(folder), False, str(error))
    except OSError as error:
        return _listed(folder.name, name, None, None, f"cannot be read: {error.strerror}")
    return _listed(folder.name, name, found, True if verify else None, None)


def _set_aside(quarantine: Path, refused: RejectedCheckpoint) -> ListedCheckpoint | None:
    name = layout.checkpoint_name_in(refused.name)
    if name is None:
        return None
    return _listed(refused.name, name, _readable_manifest(quarantine / refused.name), False, refused.reason, True)


def _readable_manifest(folder: Path) -> Manifest | None:
    try:
        return manifest.read(folder)
    except (ManifestError, OSError):
        return None


def _listed(
    text: str,
    name: layout.CheckpointName,
    found: Manifest | None,
    valid: bool | None,
    reason: str | None,
    quarantined: bool = False,
) -> ListedCheckpoint:
    return ListedCheckpoint(
        name=text,
        step=name.step,
        attempt=name.attempt,
        created_wall_at=found.created_wall_at if found else None,
        size_bytes=found.size_bytes if found else None,
        valid=valid,
        reason=reason,
        quarantined=quarantined,
    )
