"""The log keeper's pipes and the writers they lead to: all the reading, none of the disks."""

import errno
import os
import select
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from supervisor.host.logs.capture_mode import COMMUNICATION, LOG, CaptureModeParser
from supervisor.host.logs.file import LogFile
from supervisor.host.logs.file_writer import LogFileWriter
from supervisor.host.logs.messages import (
    CaptureEnded,
    CapturePipe,
    CaptureRefused,
    ClearFile,
    FileCleared,
    LogFailure,
    LoggerMessage,
)
from supervisor.host.logs.system_log import LineSplitter, SystemLogSender, line_formats

READ_BYTES = 64 * 1024  # a pipe's default capacity
LAST_READS = 16  # per pipe at the end: a grandchild that prints for ever must not hold it


class LogInput(NamedTuple):
    """A pipe that is read, and where what comes out of it goes: into a file, and line by line to log daemons."""

    take: CapturePipe
    writer: LogFileWriter | None
    lines: LineSplitter | None
    capture: CaptureModeParser | None

    def log(self, data: bytes) -> None:
        """Puts it there."""
        if self.lines is not None:
            self.lines.feed(data)
        if self.writer is not None:
            self.writer.put(data)


class LogInputs:
    """Belongs to one thread. `ring`, from any thread, has it call `look`; `tell` gets what is new, and about what.

    `tell_printed`: what a pipe's listeners are to hear. `epoll` says which pipes can be read; those of a file that is
    behind are left out of it.
    """

    def __init__(
        self,
        epoll: select.epoll,
        ring: Callable[[], None],
        tell: Callable[[tuple[str, object], LoggerMessage], None],
        tell_printed: Callable[[CapturePipe, str, bytes], None],
    ) -> None:
        self.troubles: dict[str, str] = {}
        self._epoll = epoll
        self._ring = ring
        self._tell = tell
        self._tell_printed = tell_printed
        self._sources: dict[int, LogInput] = {}  # by descriptor
        self._paused: set[int] = set()
        self._writers: dict[str, LogFileWriter] = {}  # by path
        self._logs: dict[str, SystemLogSender] = {}  # by address
        self._answers: list[FileCleared] = []  # from the writers' threads

    def __contains__(self, descriptor: int) -> bool:
        return descriptor in self._sources

    def __iter__(self) -> Iterator[tuple[int, CapturePipe]]:
        return ((descriptor, source.take) for descriptor, source in self._sources.items())

    @property
    def are_gone(self) -> bool:
        """Whether no pipe is open and all that came out of pipes is written, as far as log daemons take it."""
        return not self._sources and not self._writers and all(each.is_idle for each in self._logs.values())

    @property
    def are_idle(self) -> bool:
        """Whether no disk is being waited for."""
        logs_are_idle = all(each.is_idle for each in self._logs.values())
        return logs_are_idle and all(each.is_idle for each in self._writers.values())

    def take(self, take: CapturePipe, descriptor: int | None) -> None:
        """Reads one more pipe from now on; tells if that is not possible."""
        why = _refusal(take, descriptor)
        is_known = any(each.take.id == take.id for each in self._sources.values())
        if why:
            self._tell(("pipe", take.id), CaptureRefused(take.id, why))
        if descriptor is None:
            return
        if why or is_known:
            os.close(descriptor)
            return
        try:
            lines = self._lines_of(take)
        except RuntimeError as error:  # the host has no thread to spare
            os.close(descriptor)
            self._tell(("pipe", take.id), CaptureRefused(take.id, str(error)))
            return
        os.set_blocking(descriptor, False)
        capture = CaptureModeParser(take.capture) if take.capture else None
        self._sources[descriptor] = LogInput(take, self._writer_of(take), lines, capture)
        self._epoll.register(descriptor, select.EPOLLIN)

    def _writer_of(self, take: CapturePipe) -> LogFileWriter | None:
        if not take.path:
            return None
        writer = self._writers.get(take.path)
        if writer is None or not writer.hold(take.maxbytes, take.backups):
            writer = self._new_writer(take.path)
            writer.hold(take.maxbytes, take.backups)
        return writer

    def _lines_of(self, take: CapturePipe) -> LineSplitter | None:
        ways = []
        for address, message in line_formats(take):
            if address not in self._logs:
                self._logs[address] = SystemLogSender(address, self._ring)
            ways.append((self._logs[address], message))
        return LineSplitter(ways) if ways else None

    def read(self, descriptor: int) -> bool:
        """Moves one piece; False if there was none."""
        source = self._sources[descriptor]
        take, writer = source.take, source.writer
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._let_go(descriptor)
            self._tell(("pipe", take.id), CaptureEnded(take.id))
            return False
        for kind, piece in source.capture.feed(data) if source.capture is not None else ((LOG, data),):
            if kind == LOG:
                source.log(piece)
            if kind == COMMUNICATION or take.events:
                self._tell_printed(take, COMMUNICATION if kind == COMMUNICATION else LOG, piece)
        if writer is not None and writer.is_full:
            writer.watched = True
            if writer.is_full:  # still, so that it will see that it is watched when it has written
                self._pause(writer)
        return True

    def reopen(self) -> None:
        """Opens all files again by their names."""
        for writer in self._writers.values():
            writer.act(LogFile.reopen)

    def clear(self, order: ClearFile) -> None:
        """Empties a file, also one that no pipe leads to, and tells when it is done."""

        def act(file: LogFile) -> None:
            number, why = 0, ""
            try:
                file.clear()
            except OSError as error:
                number, why = error.errno or errno.EIO, error.strerror or str(error)
            self._answers.append(FileCleared(order.request, number, why))
            self._ring()

        writer = self._writers.get(order.path)
        if writer is None or not writer.act(act):
            writer = self._new_writer(order.path)
            writer.act(act)
            writer.release()

    def end(self, drain: bool) -> None:
        """Closes all pipes, after reading what is in them if `drain`; what has been read is still written."""
        for descriptor in list(self._sources):
            for _ in range(LAST_READS if drain else 0):
                if not self.read(descriptor):
                    break
            if descriptor in self._sources:
                self._let_go(descriptor)

    def look(self) -> None:
        """Goes on reading where there is room again, tells troubles and answers, forgets writers that have ended."""
        for path, writer in list(self._writers.items()):
            has_ended = writer.has_ended  # looked at once: in the next moment it may be another
            trouble = "" if has_ended else writer.trouble
            if trouble != self.troubles.get(path, ""):
                self.troubles[path] = trouble
                self._tell(("trouble", path), LogFailure(path, trouble))
            if has_ended:
                del self._writers[path]
                self.troubles.pop(path, None)
            elif writer.watched:
                self._watch(writer, bool(trouble))
        for address, log in self._logs.items():
            if log.trouble != self.troubles.get(address, ""):
                self.troubles[address] = log.trouble
                self._tell(("trouble", address), LogFailure(address, log.trouble))
        while self._answers:
            answer = self._answers.pop()
            self._tell(("clear", answer.request), answer)

    def _new_writer(self, path: str) -> LogFileWriter:
        writer = self._writers[path] = LogFileWriter(LogFile(Path(path), 0, 0), self._ring)
        return writer

    def _watch(self, writer: LogFileWriter, is_troubled: bool) -> None:
        is_full = writer.is_full
        if not is_full:
            for descriptor in [each for each in self._paused if self._sources[each].writer is writer]:
                self._paused.discard(descriptor)
                self._epoll.register(descriptor, select.EPOLLIN)
        writer.watched = is_full or is_troubled

    def _pause(self, writer: LogFileWriter) -> None:
        for descriptor, source in self._sources.items():
            if source.writer is writer and descriptor not in self._paused:
                self._epoll.unregister(descriptor)
                self._paused.add(descriptor)

    def _let_go(self, descriptor: int) -> None:
        source = self._sources.pop(descriptor)
        if descriptor not in self._paused:
            self._epoll.unregister(descriptor)
        self._paused.discard(descriptor)
        os.close(descriptor)
        if source.capture is not None and (left := source.capture.end()):
            source.log(left)
        if source.lines is not None:
            source.lines.end()
        writer = source.writer
        if writer is not None and all(each.writer is not writer for each in self._sources.values()):
            writer.release()


def _refusal(take: CapturePipe, descriptor: int | None) -> str:
    """Why a pipe can't be taken; empty if it can."""
    if descriptor is None:
        return "no descriptor arrived; the log keeper may have reached its limit of open files"
    status = os.fstat(descriptor)
    if not stat.S_ISFIFO(status.st_mode) or status.st_ino != take.id:
        return "the descriptor is not that pipe's"
    return ""
