"""The pipes that the logger reads, and the writers and log daemons that get what comes out. Touches no disk."""

import errno
import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path

from supervisor.host.logs.files.file import OutputFile
from supervisor.host.logs.files.file_writer import LogFileWriter
from supervisor.host.logs.files.positions import LogPosition
from supervisor.host.logs.log_input import LogInput, refusal_of
from supervisor.host.logs.messages import (
    AttemptBegan,
    BeginAttempt,
    CaptureEnded,
    CapturePipe,
    CaptureRefused,
    ClearFile,
    FileCleared,
    LogFailure,
    LoggerMessage,
)
from supervisor.host.logs.system_log import LineSplitter, SystemLogSender, line_formats

READ_BYTES = 64 * 1024  # the default capacity of a pipe
FINAL_READS = 16  # of each pipe at the end: a grandchild that prints for ever must not hold up the exit


class _Beginning:
    """Where the output of an attempt begins in a file; the file's thread sets `position`."""

    __slots__ = ("attempt", "position")

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.position: LogPosition | None = None


class LogInputs:
    """All pipes. Belongs to one thread, but `wake` is called from any thread to have `check` called.

    `send` gets messages for the daemon, each with its subject; `send_output` what event listeners are to get. Pipes are
    registered in `epoll`, except while their file is behind.
    """

    def __init__(
        self,
        epoll: select.epoll,
        wake: Callable[[], None],
        send: Callable[[tuple[str, object], LoggerMessage], None],
        send_output: Callable[[CapturePipe, str, bytes], None],
    ) -> None:
        self.failures: dict[str, str] = {}
        self._epoll = epoll
        self._wake = wake
        self._send = send
        self._send_output = send_output
        self._inputs: dict[int, LogInput] = {}  # by descriptor
        self._paused: set[int] = set()
        self._unread: set[int] = set()  # pipes of attempts of which nothing was read yet
        self._beginnings: dict[tuple[str, str], _Beginning] = {}  # by program and path: of the latest attempt
        self._writers: dict[str, LogFileWriter] = {}  # by path
        self._system_logs: dict[str, SystemLogSender] = {}  # by address
        self._answers: list[tuple[tuple[str, object], LoggerMessage]] = []  # from the writers' threads

    def __contains__(self, descriptor: int) -> bool:
        return descriptor in self._inputs

    def __iter__(self) -> Iterator[tuple[int, CapturePipe]]:
        return ((descriptor, log_input.request) for descriptor, log_input in self._inputs.items())

    @property
    def are_finished(self) -> bool:
        """Whether no pipe is open and all output is written, as far as log daemons accept it."""
        return not self._inputs and not self._writers and all(log.is_idle for log in self._system_logs.values())

    @property
    def are_idle(self) -> bool:
        """Whether no disk and no log daemon is being waited for."""
        logs_are_idle = all(log.is_idle for log in self._system_logs.values())
        return logs_are_idle and all(writer.is_idle for writer in self._writers.values())

    def add_pipe(self, pipe: CapturePipe, descriptor: int | None) -> None:
        """Reads one more pipe from now on, or refuses it."""
        why = refusal_of(pipe, descriptor)
        is_known = any(log_input.request.id == pipe.id for log_input in self._inputs.values())
        if why:
            self._send(("pipe", pipe.id), CaptureRefused(pipe.id, why))
        if descriptor is None:
            return
        if why or is_known:
            os.close(descriptor)
            return
        try:
            lines = self._splitter_of(pipe)
        except RuntimeError as error:  # the host has no thread to spare
            os.close(descriptor)
            self._send(("pipe", pipe.id), CaptureRefused(pipe.id, str(error)))
            return
        os.set_blocking(descriptor, False)
        self._inputs[descriptor] = LogInput(pipe, self._writer_of(pipe), lines)
        if pipe.attempt and pipe.path:  # a standby is no attempt yet; `BeginAttempt` says when it is one
            self._unread.add(descriptor)
        self._epoll.register(descriptor, select.EPOLLIN)

    def _writer_of(self, pipe: CapturePipe) -> LogFileWriter | None:
        if not pipe.path:
            return None
        writer = self._writers.get(pipe.path)
        limits = pipe.maxbytes, pipe.backups, pipe.uid, pipe.compress
        if writer is None or not writer.use(*limits):
            writer = self._new_writer(pipe.path)
            writer.use(*limits)
        return writer

    def _splitter_of(self, pipe: CapturePipe) -> LineSplitter | None:
        destinations = []
        for address, line_format in line_formats(pipe):
            if address not in self._system_logs:
                self._system_logs[address] = SystemLogSender(address, self._wake)
            destinations.append((self._system_logs[address], line_format))
        return LineSplitter(destinations) if destinations else None

    def read_piece(self, descriptor: int) -> bool:
        """Reads one piece and passes it on; False if there was none."""
        log_input = self._inputs[descriptor]
        pipe, writer = log_input.request, log_input.writer
        if descriptor in self._unread:
            self._unread.discard(descriptor)
            self._note_beginning(pipe.program, pipe.attempt, pipe.path)
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._close_input(descriptor)
            self._send(("pipe", pipe.id), CaptureEnded(pipe.id))
            return False
        for kind, piece in log_input.write(data):
            self._send_output(pipe, kind, piece)
        if writer is not None and writer.is_full:
            writer.is_watched = True
            if writer.is_full:  # checked again: it may have written everything before it was watched
                self._pause_inputs(writer)
        return True

    def reopen_files(self) -> None:
        """Opens all files again by their names."""
        for writer in self._writers.values():
            writer.run_on_file(OutputFile.reopen)

    def clear_file(self, request: ClearFile) -> None:
        """Empties or rotates a file, also one that no pipe leads to; `FileCleared` follows when it is done."""

        def clear_and_answer(file: OutputFile) -> None:
            number, why = 0, ""
            try:
                if request.rotate:
                    file.backups, file.compress = request.backups, request.compress
                    file.rotate()
                else:
                    file.clear()
            except OSError as error:
                number, why = error.errno or errno.EIO, error.strerror or str(error)
            self._answer(("clear", request.request), FileCleared(request.request, number, why))

        writer = self._writers.get(request.path)
        if writer is None or not writer.run_on_file(clear_and_answer):
            writer = self._new_writer(request.path)
            writer.run_on_file(clear_and_answer)
            writer.release()

    def begin_attempt(self, begins: BeginAttempt) -> None:
        """Has `AttemptBegan` say how long the file was when the attempt began to print, or is if it has not yet.

        The daemon's thread may be so late with its message that the attempt has printed, and even ended, before.
        """
        who = begins.program, begins.attempt, begins.channel
        beginning = self._note_beginning(begins.program, begins.attempt, begins.path)

        def tell_position(_: OutputFile | None) -> None:
            if beginning.position is not None:
                self._answer(("began", who), AttemptBegan(*who, *beginning.position))

        writer = self._writers.get(begins.path)
        if writer is None or not writer.run_on_file(tell_position):
            tell_position(None)

    def _note_beginning(self, program: str, attempt: int, path: str) -> _Beginning:
        """Notes, once, where the output of an attempt begins in a file: behind all that earlier ones have printed."""
        known = self._beginnings.get((program, path))
        if known is not None and known.attempt == attempt:
            return known
        beginning = self._beginnings[program, path] = _Beginning(attempt)
        for descriptor, log_input in list(self._inputs.items()):
            request = log_input.request
            is_own = request.program == program and request.attempt == attempt
            if request.path == path and not is_own and descriptor not in self._paused:
                self._unread.discard(descriptor)  # what is left of an earlier attempt begins nothing
                self._drain(descriptor)

        def note_position(file: OutputFile) -> None:
            beginning.position = file.position()

        if (writer := self._writers.get(path)) is not None:
            writer.run_on_file(note_position)
        return beginning

    def _answer(self, subject: tuple[str, object], answer: LoggerMessage) -> None:
        """Called in a writer's thread: sends it from the owner's."""
        self._answers.append((subject, answer))
        self._wake()

    def _drain(self, descriptor: int) -> None:
        """Reads what is in the pipe; some of it, if somebody prints without end."""
        for _ in range(FINAL_READS):
            if not self.read_piece(descriptor):
                break

    def close_all(self, drain: bool) -> None:
        """Closes all pipes, with `drain` after reading what is in them; what has been read is still written."""
        for descriptor in list(self._inputs):
            if drain:
                self._drain(descriptor)
            if descriptor in self._inputs:
                self._close_input(descriptor)

    def check(self) -> None:
        """Reads again where there is room, sends failures and answers, and drops writers that have ended."""
        for path, writer in list(self._writers.items()):
            has_ended = writer.has_ended  # read once: it may change at any moment
            failure = "" if has_ended else writer.failure
            if failure != self.failures.get(path, ""):
                self.failures[path] = failure
                self._send(("failure", path), LogFailure(path, failure))
            if has_ended:
                del self._writers[path]
                self.failures.pop(path, None)
            elif writer.is_watched:
                self._resume_inputs(writer, bool(failure))
        for address, log in self._system_logs.items():
            if log.failure != self.failures.get(address, ""):
                self.failures[address] = log.failure
                self._send(("failure", address), LogFailure(address, log.failure))
        while self._answers:
            self._send(*self._answers.pop())

    def _new_writer(self, path: str) -> LogFileWriter:
        writer = self._writers[path] = LogFileWriter(OutputFile(Path(path), 0, 0), self._wake)
        return writer

    def _resume_inputs(self, writer: LogFileWriter, has_failed: bool) -> None:
        is_full = writer.is_full
        if not is_full:
            for descriptor in [paused for paused in self._paused if self._inputs[paused].writer is writer]:
                self._paused.discard(descriptor)
                self._epoll.register(descriptor, select.EPOLLIN)
        writer.is_watched = is_full or has_failed

    def _pause_inputs(self, writer: LogFileWriter) -> None:
        for descriptor, log_input in self._inputs.items():
            if log_input.writer is writer and descriptor not in self._paused:
                self._epoll.unregister(descriptor)
                self._paused.add(descriptor)

    def _close_input(self, descriptor: int) -> None:
        log_input = self._inputs.pop(descriptor)
        if descriptor not in self._paused:
            self._epoll.unregister(descriptor)
        self._paused.discard(descriptor)
        self._unread.discard(descriptor)
        os.close(descriptor)
        log_input.end()
        writer = log_input.writer
        if writer is not None and all(other.writer is not writer for other in self._inputs.values()):
            writer.release()
