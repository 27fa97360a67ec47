"""Notices as files in a watched folder: from operators, cluster hooks and drills. Removing a file withdraws it."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import structlog
from watchdog.events import (
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer

from supervisor.host.notices.announcement import ClockReading, NoticeReport, read_clocks
from supervisor.host.notices.files.folder import FolderContents, FolderError, read_folder
from supervisor.host.notices.files.format import read_notice
from supervisor.host.notices.heard import Heard
from supervisor.host.notices.parsing import ParseError
from supervisor.host.notices.source import NoticeSink

POLL_S = 5.0  # the kernel's queue of events can overflow, and NFS and some overlays send none
_TOLD_OF = [FileClosedEvent, FileCreatedEvent, FileDeletedEvent, FileModifiedEvent, FileMovedEvent]
_NAMED = 3  # so many bad files are named in one line

log = structlog.get_logger()


class NoticeFolderSource:
    """The notice folder `path`. `owners`: users besides root and our own whose files count."""

    name = "file"
    shortest_s: float | None = None

    def __init__(
        self,
        path: Path,
        owners: frozenset[int] = frozenset(),
        *,
        poll_s: float = POLL_S,
        clock: Callable[[], ClockReading] = read_clocks,
    ) -> None:
        self._path = path
        self._owners = owners | {0, os.geteuid()}
        self._poll_s = poll_s
        self._clock = clock

    async def watch(self, sink: NoticeSink) -> None:
        """Tells `sink` what happens until it is cancelled."""
        heard = Heard(self.name, sink)
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        with _Watched(self._path, lambda: loop.call_soon_threadsafe(changed.set)) as watched:
            while True:
                changed.clear()  # before the look: what changes during it is looked at again
                error = await self._look(heard, watched)
                sink.troubled(self.name, error)
                with contextlib.suppress(TimeoutError):  # wait_for loses a cancellation that comes with the change
                    async with asyncio.timeout(self._poll_s):
                        await changed.wait()

    async def acknowledge(self, id: str) -> None:
        """Nobody waits for us."""

    async def _look(self, heard: Heard, watched: "_Watched") -> str | None:
        """Looks once, passes on what was found, and gives what is wrong with the folder or a file."""
        try:
            seen = await asyncio.to_thread(read_folder, self._path, self._owners)
            if watched.follow(seen.inode):  # the folder is new: what came before it was watched shows up only now
                seen = await asyncio.to_thread(read_folder, self._path, self._owners)
            reading = read_all(seen, self._path, self._clock())
        except FolderError as error:
            return str(error)
        except Exception as error:  # a source has to outlive whatever it meets, and the host's others with it
            log.exception("notices.failed", source=self.name)
            return (
                f"cannot read the notice folder {self._path}: an error of stepkeeper's own ({error!r:.200}); report it"
            )
        heard.hear("files", reading, self._clock())
        return reading.problem or None


def read_all(seen: FolderContents, path: Path, now: ClockReading) -> NoticeReport:
    """The notices in the files of the folder `path`, and which files are bad and why."""
    announced, bad = [], dict(seen.refused)
    for file in seen.files:
        try:
            announced.append(read_notice(file.name, file.body, file.written_wall, now))
        except ParseError as error:
            bad[file.name] = str(error)
    problem = "; ".join(
        f"cannot accept the notice file {path}/{_plain(name)}: {bad[name]}" for name in sorted(bad)[:_NAMED]
    )
    if len(bad) > _NAMED:
        problem += f"; and {len(bad) - _NAMED} more"
    return NoticeReport(tuple(announced), problem, frozenset(bad))


def _plain(name: str) -> str:
    """A file's name, made fit for one line of a log."""
    return name.encode("unicode_escape").decode("ascii")[:110]


class _Handler(FileSystemEventHandler):
    def __init__(self, tell: Callable[[], object]) -> None:
        self._tell = tell

    def on_any_event(self, event: FileSystemEvent) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._tell()


class _Watched:
    """The kernel's word that something changed in the folder, as long as it is the same folder."""

    def __init__(self, path: Path, tell: Callable[[], object]) -> None:
        self._path = path
        self._handler = _Handler(tell)
        self._observer = Observer()
        self._inode: int | None = None

    def __enter__(self) -> "_Watched":
        return self

    def __exit__(self, *_: object) -> None:
        if self._observer.is_alive():
            self._observer.stop()
            self._observer.join(1.0)

    def follow(self, inode: int) -> bool:
        """Watches the folder that `inode` is, if that is not done yet; True if it was begun now."""
        has_ended = any(not each.is_alive() for each in self._observer.emitters)  # its folder was removed
        if inode == self._inode and not has_ended:  # a new one may have the number that became free
            return False
        self._inode = inode
        try:
            if not self._observer.is_alive():
                self._observer.start()
            self._observer.unschedule_all()
            self._observer.schedule(self._handler, str(self._path), event_filter=_TOLD_OF)
        except OSError as error:
            log.warning(
                "notices.not_watched", folder=str(self._path), error=str(error), next="looked at every few seconds"
            )
            return False
        return True
