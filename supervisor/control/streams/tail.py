"""The end of a log file, and what is added to it while a client follows it."""

import asyncio
import errno
import os
import stat
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, Protocol

from supervisor.control.base.context import CommandContext
from supervisor.control.base.errors import Code, CommandError
from supervisor.control.http import web
from supervisor.host.blocking_calls import BlockingCalls
from supervisor.host.ledger.ledger import LedgerError
from supervisor.host.logs.files.attempt_output import AttemptOutput, OutputGone, open_attempt_output
from supervisor.host.logs.files.positions import LogPosition, position_in
from supervisor.host.user_folders.guarded_open import open_guarded
from supervisor.protocol.numbers import whole_number

DEFAULT_BYTES = 1600  # as Supervisor's tail
MAX_BYTES = 16 << 20
BLOCK_BYTES = 64 * 1024
STAMP_LAG_NS = 1_000_000_000  # the time of a write may lag behind the clock by a tick of the kernel's
POLL_S = 0.2  # how often a followed file is read; only while a client follows it
_GONE = "the log was moved, deleted or emptied; it goes on with the file that has its name now"


class LogReader(Protocol):
    """An open log, or a part of it."""

    def read(self, count: int, /) -> bytes:
        """At most `count` bytes; none at the end. Raises OSError."""

    def close(self) -> None:
        """Closes it."""


async def respond(request: web.Request, context: CommandContext) -> web.Response:
    """The last bytes of a program's log, or of the daemon's own (name `supervisord`); with `follow=1` never ends; with
    `attempt` of what that attempt printed."""
    query = request.query
    name, channel = query.get("name", ""), query.get("channel", "stdout")
    path = _path(context, name, channel)
    bytes_text = query.get("bytes", str(DEFAULT_BYTES))
    count = whole_number(bytes_text, 0, MAX_BYTES)
    if count is None:
        raise CommandError(
            Code.BAD_ARGUMENTS, f"bytes is {bytes_text!r:.40}; it has to be a whole number up to {MAX_BYTES}"
        )
    follows = query.get("follow") == "1"
    opener: Callable[[], LogReader] = partial(_open_at_end, path, count)
    limit = count
    if (attempt := query.get("attempt")) is not None:
        opener = await _opener_of_attempt(context, name, channel, attempt, count, follows)
        limit += BLOCK_BYTES  # room for a remark; it ends by itself
    try:
        file, first = await context.disks.run(path, _open_and_read, opener, limit)
    except FileNotFoundError as error:
        raise CommandError(Code.NO_FILE, f"{path} does not exist yet") from error
    except OutputGone as error:
        raise CommandError(Code.NO_FILE, f"the {channel} of attempt {attempt} of {name} is gone: {error}") from error
    except OSError as error:
        raise CommandError(Code.FAILED, f"cannot read {path}: {error.strerror or error}") from error
    pieces = _stream(context.disks, path, file, first, limit, follows)
    return web.Response(pieces, content_type="text/plain; charset=utf-8")


async def _opener_of_attempt(
    context: CommandContext, name: str, channel: str, attempt: str, count: int, follows: bool
) -> Callable[[], LogReader]:
    """What opens the output of one attempt; call it in a thread. Raises CommandError if there is none to open."""
    number = whole_number(attempt)
    if number is None:
        raise CommandError(Code.BAD_ARGUMENTS, f"attempt is {attempt!r:.40}; it has to be a whole number")
    runner = context.programs.runners.get(name)
    if follows or runner is None:
        what = "the daemon's log" if runner is None else "a log that is followed"
        raise CommandError(Code.BAD_ARGUMENTS, f"cannot show one attempt of {what}; leave one of the two out")
    config = runner.config
    recorded = "stdout" if config.redirect_stderr else channel
    path = config.stdout_logfile if recorded == "stdout" else config.stderr_logfile
    assert path is not None  # or there would be no log
    try:
        positions = await asyncio.to_thread(context.ledger.output_begins.load, name, number, recorded)
    except LedgerError as error:
        raise CommandError(Code.FAILED, str(error)) from error
    if positions is None:
        raise CommandError(
            Code.NO_FILE,
            f"it was not recorded where attempt {attempt} of {name} begins in its log; `history {name}` lists attempts",
        )
    return partial(_open_attempt, path, positions, number, count)


def _open_attempt(path: Path, positions: tuple[LogPosition, LogPosition | None], attempt: int, count: int) -> LogReader:
    """Opens the output of one attempt, positioned before its last `count` bytes. Raises OSError, OutputGone."""
    gap = f"[stepkeeper: the beginning of attempt {attempt} is gone]\n".encode()
    output = open_attempt_output(path, *positions, gap)
    output.skip_to_last(count)
    return output


async def _stream(
    disks: BlockingCalls, path: Path, file: LogReader, piece: bytes, count: int, follows: bool
) -> AsyncGenerator[bytes, None]:
    """`count` bytes of the open file, `piece` first (a rotation can't remove those); then what is added to the log."""
    try:
        while piece:
            count -= len(piece)
            yield piece
            piece = await disks.run(path, file.read, min(count, BLOCK_BYTES))
        position = await disks.run(path, position_of, file) if follows and isinstance(file, BufferedReader) else None
    finally:
        # in a thread: it waits for a read that is still under way, on a disk that may hang
        disks.submit(path, file.close)
    if position is not None:
        async for added in follow(disks, path, position):
            yield added


def _open_at_end(path: Path, count: int) -> BinaryIO:
    """Opens a log, positioned before its last `count` bytes. Raises OSError."""
    file = open_log(path)
    file.seek(max(0, file.seek(0, os.SEEK_END) - count))
    return file


def _open_and_read(open_file: Callable[[], LogReader], count: int) -> tuple[LogReader, bytes]:
    """Opens a log and reads the first piece, so that an error is known before the response begins."""
    file = open_file()
    return file, file.read(min(count, BLOCK_BYTES))


def _path(context: CommandContext, name: str, channel: str) -> Path:
    if channel not in ("stdout", "stderr"):
        raise CommandError(Code.BAD_ARGUMENTS, f"channel is {channel!r:.40}; it has to be stdout or stderr")
    if name == "supervisord":
        path = context.settings.logfile
    elif (runner := context.programs.runners.get(name)) is not None:
        config = runner.config
        path = config.stdout_logfile if channel == "stdout" or config.redirect_stderr else config.stderr_logfile
    else:
        raise CommandError(Code.BAD_NAME, name)
    if path is None:
        raise CommandError(Code.NO_FILE, f"{name} has no {channel} log: its log file is set to NONE")
    return path


def open_log(path: Path) -> BinaryIO:
    """Opens a log without blocking. Raises OSError, also if it is not a regular file, which might block a reader."""
    descriptor = open_guarded(path, os.O_RDONLY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return os.fdopen(descriptor, "rb")


def read_end(path: Path, count: int) -> tuple[bytes, LogPosition]:
    """The last `count` bytes, and the position at which reading continues."""
    with _open_at_end(path, count) as file:
        return file.read(count), position_of(file)


def position_of(file: BinaryIO) -> LogPosition:
    """The position at which reading an open log continues. Raises OSError."""
    return position_in(file.fileno(), file.tell())


async def follow(
    disks: BlockingCalls, path: Path, position: LogPosition, on_truncation: bytes = b""
) -> AsyncGenerator[bytes, None]:
    """Yields what is added to the log after `position`, across rotations and truncations, without end.

    When the file has become shorter, it yields `on_truncation` first. Of files that were rotated since the last look,
    it yields the rest, as far as they are still there; where the file that was read last is not, it says so.
    """
    while True:
        added = await disks.run(path, _look_for_more, path, position)
        position = added.position
        if added.is_shorter and on_truncation:
            yield on_truncation
        if added.rest is not None:
            try:
                async for piece in _all_of(disks, path, added.rest):
                    yield piece
            finally:
                disks.submit(path, added.rest.close)
        elif added.content:
            yield added.content
        else:
            await asyncio.sleep(POLL_S)


async def _all_of(disks: BlockingCalls, path: Path, rest: AttemptOutput) -> AsyncGenerator[bytes, None]:
    """What is in several files; in place of one that can't be read, why."""
    while True:
        try:
            piece = await disks.run(path, rest.read, BLOCK_BYTES)
        except OSError as error:
            rest.leave_out_first()
            piece = _gap(error)
        if not piece:
            return
        yield piece


def _gap(why: Exception | str) -> bytes:
    are = "are" if isinstance(why, Exception) else "may be"
    return f"[stepkeeper: lines {are} missing here: {why}]\n".encode()


@dataclass(frozen=True, slots=True)
class _Added:
    """What follows a position: a piece of it, or all (`rest`), if it is in more than one file; and the position after
    that. `is_shorter`: the file was truncated."""

    position: LogPosition
    content: bytes = b""
    rest: AttemptOutput | None = None
    is_shorter: bool = False


def _look_for_more(path: Path, position: LogPosition) -> _Added:
    try:
        with open_log(path) as file:
            status = os.fstat(file.fileno())
            is_same = status.st_ino == position.inode
            is_shorter = is_same and status.st_size < position.offset
            if is_shorter or (is_same and position_in(file.fileno(), position.offset).digest == position.digest):
                file.seek(0 if is_shorter else position.offset)
                content = file.read(BLOCK_BYTES)
                return _Added(position_of(file) if content or is_shorter else position, content, None, is_shorter)
            beginning = position_in(file.fileno(), 0)
    except OSError:
        return _Added(position)  # during a rotation there may be no file; the next look finds it
    try:
        rest = open_attempt_output(path, position, None, _gap(_GONE))
    except (OSError, OutputGone) as error:  # what it was to go on from would not be read at the next look either
        return _Added(beginning, _gap(error))
    rest.skip_written_before(position.at_ns - STAMP_LAG_NS)
    end = rest.end_position()
    if end is None or rest.is_empty:
        rest.close()
        return _Added(position)
    return _Added(end, rest=rest)
