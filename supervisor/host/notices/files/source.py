"""Notices as files in a watched folder, for operators and cluster hooks. Removing a file withdraws its notice."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from functools import partial
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

from supervisor.core.notices.notice import ClockReading, NoticeReport
from supervisor.host.blocking_calls import BlockingCalls
from supervisor.host.notices.files.folder import FolderContents, FolderError, read_folder
from supervisor.host.notices.files.format import parse_notice_file
from supervisor.host.notices.parsing import ParseError
from supervisor.host.notices.source import NoticeSink, read_clocks

POLL_S = 5.0  # inotify's queue can overflow, and NFS and some overlays send no events
ANSWER_S = 10.0  # for a disk; then it is said that it does not answer, and the look at it goes on
ENDPOINT = "files"
_EVENTS = [FileClosedEvent, FileCreatedEvent, FileDeletedEvent, FileModifiedEvent, FileMovedEvent]
_NAMED_COUNT = 3  # bad files that one message names

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
        self._calls = BlockingCalls()
        self._look: asyncio.Future[FolderContents] | None = None  # that has no answer yet

    async def watch(self, sink: NoticeSink) -> None:
        """Reports what lies in the folder, at once after each change, until cancelled."""
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        with _FolderWatch(self._path, lambda: loop.call_soon_threadsafe(changed.set)) as folder_watch:
            try:
                while True:
                    changed.clear()  # before reading, so that a change during it is read again
                    error = await self._report(sink, folder_watch)
                    sink.on_source_health(self.name, error)
                    with contextlib.suppress(TimeoutError):  # wait_for loses a cancellation that comes with the change
                        async with asyncio.timeout(self._poll_s):
                            await changed.wait()
            finally:
                if self._look is not None:
                    self._look.cancel()

    async def acknowledge(self, id: str) -> None:
        """Does nothing: who writes a file does not wait."""

    async def _report(self, sink: NoticeSink, folder_watch: "_FolderWatch") -> str | None:
        """Reads the folder once and reports it; returns what is wrong with the folder or a file."""
        try:
            contents = await self._read_folder()
            if folder_watch.follow(contents.inode):  # a new folder: events before it was watched are lost
                contents = await self._read_folder()
            report = parse_folder(contents, self._path, self._clock())
        except FolderError as error:
            return str(error)
        except Exception as error:  # a bug must stop neither this source nor the others of this host
            log.exception("notices.failed", source=self.name)
            return f"cannot read the notice folder {self._path}: internal error {error!r:.200}; please report it"
        sink.on_report(self.name, ENDPOINT, report, self._clock())
        return report.problem or None

    async def _read_folder(self) -> FolderContents:
        """What is in the folder, also as the last look at it says that did not come back in time. Raises FolderError.

        In a thread that the end of the daemon does not wait for.
        """
        if self._look is None:
            look = partial(read_folder, self._path, self._owners)
            self._look = asyncio.ensure_future(self._calls.run_for_folder(self._path, look))
        await asyncio.wait({self._look}, timeout=ANSWER_S)
        if not self._look.done():
            raise FolderError(
                f"cannot read the notice folder {self._path}: it has not answered for {ANSWER_S:g} s; check its disk"
            )
        answered, self._look = self._look, None
        return answered.result()


def parse_folder(contents: FolderContents, path: Path, now: ClockReading) -> NoticeReport:
    """The notices in the files of the folder `path`, and which files are bad and why."""
    notices, bad = [], dict(contents.refused)
    for file in contents.files:
        try:
            notices.append(parse_notice_file(file.name, file.body, file.written_wall_at, now))
        except ParseError as error:
            bad[file.name] = str(error)
    problem = "; ".join(
        f"cannot accept the notice file {path}/{_printable(name)}: {bad[name]}" for name in sorted(bad)[:_NAMED_COUNT]
    )
    if len(bad) > _NAMED_COUNT:
        problem += f"; and {len(bad) - _NAMED_COUNT} more"
    return NoticeReport(tuple(notices), problem, frozenset(bad))


def _printable(name: str) -> str:
    """A file's name, escaped for one line of a log."""
    return name.encode("unicode_escape").decode("ascii")[:110]


class _ChangeHandler(FileSystemEventHandler):
    def __init__(self, on_change: Callable[[], object]) -> None:
        self._on_change = on_change

    def on_any_event(self, event: FileSystemEvent) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._on_change()


class _FolderWatch:
    """Calls `on_change` when something changes in the folder; follows the name when the folder is replaced."""

    def __init__(self, path: Path, on_change: Callable[[], object]) -> None:
        self._path = path
        self._handler = _ChangeHandler(on_change)
        self._observer = Observer()
        self._inode: int | None = None

    def __enter__(self) -> "_FolderWatch":
        return self

    def __exit__(self, *_: object) -> None:
        if self._observer.is_alive():
            self._observer.stop()
            self._observer.join(1.0)

    def follow(self, inode: int) -> bool:
        """Watches the folder with this inode, if it does not yet; True if it has begun now."""
        has_ended = any(not emitter.is_alive() for emitter in self._observer.emitters)  # its folder was removed
        if inode == self._inode and not has_ended:  # a new folder may have the number that became free
            return False
        self._inode = inode
        try:
            if not self._observer.is_alive():
                self._observer.start()
            self._observer.unschedule_all()
            self._observer.schedule(self._handler, str(self._path), event_filter=_EVENTS)
        except OSError as error:
            log.warning(
                "notices.not_watched", folder=str(self._path), error=str(error), next="polled every few seconds"
            )
            return False
        return True
