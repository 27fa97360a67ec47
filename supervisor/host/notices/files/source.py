"""Notices as files in a watched folder, for operators and cluster hooks. Removing a file withdraws its notice."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import structlog

from supervisor.core.notices.notice import ClockReading, NoticeReport
from supervisor.host.notices.files.folder import FolderContents, FolderError, read_folder
from supervisor.host.notices.files.format import parse_notice_file
from supervisor.host.notices.parsing import ParseError
from supervisor.host.notices.source import NoticeSink, read_clocks
from supervisor.host.service.file_watch import FolderWatch

POLL_S = 5.0  # inotify's queue can overflow, and NFS and some overlays send no events
ENDPOINT = "files"
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
        self._is_watched = True

    async def watch(self, sink: NoticeSink) -> None:
        """Reports what lies in the folder, at once after each change, until cancelled."""
        changed = asyncio.Event()
        with contextlib.closing(FolderWatch(self._path, changed.set)) as folder_watch:
            while True:
                changed.clear()  # before reading, so that a change during it is read again
                error = await self._report(sink, folder_watch)
                sink.on_source_health(self.name, error)
                with contextlib.suppress(TimeoutError):  # wait_for loses a cancellation that comes with the change
                    async with asyncio.timeout(self._poll_s):
                        await changed.wait()

    async def acknowledge(self, id: str) -> None:
        """Does nothing: who writes a file does not wait."""

    async def _report(self, sink: NoticeSink, folder_watch: FolderWatch) -> str | None:
        """Reads the folder once and reports it; returns what is wrong with the folder or a file."""
        try:
            contents = await asyncio.to_thread(self._read, folder_watch)
            report = parse_folder(contents, self._path, self._clock())
        except FolderError as error:
            return str(error)
        except Exception as error:  # a bug must stop neither this source nor the others of this host
            log.exception("notices.failed", source=self.name)
            return f"cannot read the notice folder {self._path}: internal error {error!r:.200}; please report it"
        sink.on_report(self.name, ENDPOINT, report, self._clock())
        return report.problem or None

    def _read(self, folder_watch: FolderWatch) -> FolderContents:
        """What lies in the folder, which is watched from now on. Blocks. Raises FolderError."""
        contents = read_folder(self._path, self._owners)
        try:
            is_new = folder_watch.follow()
        except OSError as error:
            if self._is_watched:
                then = "polled every few seconds"
                log.warning("notices.not_watched", folder=str(self._path), error=str(error), next=then)
            self._is_watched = False
            return contents
        self._is_watched = True
        # events before it was watched are lost, so read again
        return read_folder(self._path, self._owners) if is_new else contents


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
