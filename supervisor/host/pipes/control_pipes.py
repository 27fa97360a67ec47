"""The daemon's ends of the two control pipes of one attempt, through which it and the worker send messages.

They are named pipes in the attempt's folder, and each side opens both of them for reading and writing. So the death of
one side does not close them: a worker can write while no daemon runs, and the next daemon opens the pipes again and
reads what is in them.

A worker that writes without end must not delay other programs. So each turn of the event loop handles a bounded number
of lines; of each type only so many messages are passed on as its `rate` allows; and a pipe out of which more comes than
any sane worker writes is left full for a while: a worker that floods it waits, and costs next to nothing.
"""

import asyncio
import contextlib
import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from supervisor.host.folder_removal import remove_folder, try_to_remove_folder
from supervisor.protocol import layout
from supervisor.protocol.plurals import counted
from supervisor.protocol.wire.codec import ProtocolError
from supervisor.protocol.wire.limits import TokenBucket
from supervisor.protocol.wire.lines import Decoder, encode_message
from supervisor.protocol.wire.messages import NAMES, STANDBY, FromWorker, Message, ToWorker

READ_BYTES = 64 * 1024  # a pipe's whole default capacity
ITEMS_A_TURN = 128  # lines handled in one turn of the event loop: about a millisecond
ITEMS_AT_CLOSE = 4096  # lines of a dead worker that are still handled; a sane one leaves a handful
QUEUED_MESSAGES = 64  # more than a worker that reads ever leaves unread
REPORT_EVERY_S = 10.0  # a worker that writes garbage is reported, but not for every line
LINES_A_SECOND, LINES_AT_ONCE = 500, 5_000  # read of one pipe; worker.Run writes some 30, and queues a thousand
BYTES_A_SECOND, BYTES_AT_ONCE = 256 << 10, 4 << 20
LONGEST_PAUSE_S = 1.0  # so that what a worker says after a flood is heard soon
MAX_SHOWN = 200  # characters of why a message was refused
SHOWN_FOR_S = 3600.0  # after the last message that was refused or left out


@dataclass(slots=True)
class RefusedMessages:
    """What was not passed on of what a worker wrote. Times are monotonic seconds.

    `refused`: messages that are none, or out of their limits, `why` the last one; `left_out`: those that came more
    often than their type may, `too_often` being the last such type.
    """

    refused: int = 0
    why: str = ""
    left_out: int = 0
    too_often: str = ""
    last_at: float = 0.0

    def describe(self, now: float) -> list[str]:
        """What `status` says of it; nothing an hour after the last one."""
        if not (self.refused or self.left_out) or now - self.last_at > SHOWN_FOR_S:
            return []
        nonsense = f"sends nonsense: {self.why} ({counted(self.refused, 'message')} refused)" if self.refused else ""
        often = f"sends {self.too_often} too often ({counted(self.left_out, 'message')} left out)"
        return [each for each in (nonsense, often if self.left_out else "") if each]


NOTHING_REFUSED = RefusedMessages()
"""Of a program that has no worker yet."""


class ControlPipes:
    """The two pipes in `folder`.

    They are created in place of what an earlier daemon left there, or, with `found`, opened with what is still in them.
    `owner`: uid and gid of the pipes. `on_message` gets every valid message of this attempt, `on_error` a text about
    invalid ones, rate-limited; both are called from the running loop. Raises OSError, with nothing left behind.
    """

    def __init__(
        self,
        folder: Path,
        attempt: int,
        owner: tuple[int, int] | None,
        on_message: Callable[[FromWorker], None],
        on_error: Callable[[str], None],
        found: bool = False,
    ) -> None:
        self._folder = folder
        self._attempt = attempt
        self._on_message = on_message
        self._errors = _ErrorReports(on_error)
        self._decoder = Decoder()
        self._items: Iterator[Message | ProtocolError] = iter(())
        self._unsent: deque[bytes] = deque()
        self._buckets: dict[type[Message], TokenBucket] = {}
        self._lines = TokenBucket(LINES_A_SECOND, LINES_AT_ONCE)
        self._bytes = TokenBucket(BYTES_A_SECOND, BYTES_AT_ONCE)
        self._pause_s = 0.0
        self.refusals = RefusedMessages()
        """What was not passed on of what the worker wrote."""
        self._loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as undo:
            if not found:
                undo.callback(try_to_remove_folder, folder)
                _create(folder, owner)
            self._writing = _open(folder / layout.TO_WORKER)
            undo.callback(os.close, self._writing)
            self._reading = _open(folder / layout.FROM_WORKER)
            undo.callback(os.close, self._reading)
            if owner is not None and not found:
                os.chown(folder, *owner)  # last: from now on its owner can change the files
            undo.pop_all()
        self.has_received = False
        """Whether a message came; if so, the worker has opened its ends of the pipes."""
        self._is_open = True
        self._loop.add_reader(self._reading, self._read)
        if found:
            self._unsent.append(b"\n")  # ends a line that an earlier daemon may have left unfinished
            self._loop.add_writer(self._writing, self._write)

    def send(self, message: ToWorker) -> bool:
        """Queues a message without waiting; False if the queue is full, as the worker does not read."""
        if not self._is_open or len(self._unsent) >= QUEUED_MESSAGES:
            return False
        if not self._unsent:
            self._loop.add_writer(self._writing, self._write)
        self._unsent.append(encode_message(message))
        self._write()
        return True

    def move_to_attempt(self, folder: Path, attempt: int) -> None:
        """Makes a standby's pipes those of an attempt, in `folder`. Raises OSError if they can't be moved there.

        Not before it `was_heard`: it would not find them where it looks.
        Messages that it sent as a standby are dropped.
        """
        if folder.is_dir() and not folder.is_symlink():
            remove_folder(folder)
        self._folder.rename(folder)
        self._folder, self._attempt = folder, attempt

    def set_receiver(self, on_message: Callable[[FromWorker], None], on_error: Callable[[str], None]) -> None:
        """Changes who gets messages and errors from now on."""
        self._on_message, self._errors = on_message, _ErrorReports(on_error)

    def close(self) -> None:
        """Delivers what is still in the pipe, then removes the pipes and the folder. A second call does nothing."""
        if not self._is_open:
            return
        self._is_open = False
        self._loop.remove_reader(self._reading)
        self._loop.remove_writer(self._writing)
        for item in islice(self._rest(), ITEMS_AT_CLOSE):
            self._deliver(item)
        self._errors.close()
        os.close(self._reading)
        os.close(self._writing)
        try_to_remove_folder(self._folder)  # the next daemon removes what remains

    def read_last_words(self) -> list[FromWorker]:
        """Reads the last message, which the worker also wrote to the file beside the pipes: no daemon may have run, or
        the pipe been full."""
        return read_last_words(self._folder, self._attempt)

    def detach(self) -> None:
        """Closes our ends; the pipes and what is in them stay for the next daemon."""
        if not self._is_open:
            return
        self._is_open = False
        self._loop.remove_reader(self._reading)
        self._loop.remove_writer(self._writing)
        os.close(self._reading)
        os.close(self._writing)

    def _write(self) -> None:
        while self._unsent:
            try:
                sent = os.write(self._writing, self._unsent[0])
            except BlockingIOError:
                return
            if sent < len(self._unsent[0]):
                self._unsent[0] = self._unsent[0][sent:]
            else:
                self._unsent.popleft()
        self._loop.remove_writer(self._writing)

    def _read(self) -> None:
        """Reads once and handles a bounded number of lines; the others follow in later turns, before the next read."""
        if not self._is_open:
            return
        data = _read_some(self._reading)
        self._pause_s = self._bytes.spend(self._loop.time(), len(data))
        self._items = self._decoder.feed(data)
        self._deliver_some()

    def _deliver_some(self) -> None:
        if not self._is_open:
            return
        count = 0
        for item in islice(self._items, ITEMS_A_TURN):
            count += 1
            self._deliver(item)
        if not self._is_open:  # a message caused the close
            return
        self._pause_s = max(self._pause_s, self._lines.spend(self._loop.time(), count))
        if count == ITEMS_A_TURN:
            self._loop.remove_reader(self._reading)
            self._loop.call_soon(self._deliver_some)
        elif self._pause_s > 0.0:
            self._loop.remove_reader(self._reading)
            self._loop.call_later(min(self._pause_s, LONGEST_PAUSE_S), self._read_on)
        else:
            self._read_on()

    def _read_on(self) -> None:
        if self._is_open:
            self._loop.add_reader(self._reading, self._read)

    def _rest(self) -> Iterator[Message | ProtocolError]:
        yield from self._items
        while data := _read_some(self._reading):
            yield from self._decoder.feed(data)

    def _deliver(self, item: Message | ProtocolError) -> None:
        if isinstance(item, ProtocolError):
            self._refuse("garbage", str(item))
        elif not isinstance(item, FromWorker):
            self._refuse("direction", f"{type(item).__name__} is sent to workers, not by them; ignored")
        elif item.attempt == STANDBY != self._attempt:
            pass  # sent before it was promoted
        elif item.attempt != self._attempt:
            self._errors.add("attempt", _foreign(item, self._attempt))
        elif not self._comes_too_often(item):
            self.has_received = True
            self._on_message(item)

    def _refuse(self, kind: str, why: str) -> None:
        self.refusals.refused += 1
        self.refusals.why, self.refusals.last_at = why[:MAX_SHOWN], self._loop.time()
        self._errors.add(kind, why)

    def _comes_too_often(self, message: FromWorker) -> bool:
        kind, now = type(message), self._loop.time()
        bucket = self._buckets.get(kind) or self._buckets.setdefault(
            kind, TokenBucket(message.rate.per_s, message.rate.burst)
        )
        if bucket.take(now):
            return False
        self.refusals.left_out += 1
        self.refusals.too_often, self.refusals.last_at = NAMES[kind], now
        self._errors.add("rate", f"{NAMES[kind]} comes more often than {message.rate}; left out")
        return True


class _ErrorReports:
    """Reports errors: the first of each kind at once, then at most one in REPORT_EVERY_S, with a count."""

    def __init__(self, on_error: Callable[[str], None]) -> None:
        self._on_error = on_error
        self._quiet_until: dict[str, float] = {}
        self._held_back: dict[str, int] = {}
        self._loop = asyncio.get_running_loop()

    def add(self, kind: str, text: str) -> None:
        now = self._loop.time()
        if now < self._quiet_until.get(kind, now):
            self._held_back[kind] = self._held_back.get(kind, 0) + 1
            return
        more = self._held_back.pop(kind, 0)
        self._quiet_until[kind] = now + REPORT_EVERY_S
        self._on_error(f"{text} ({more} more since the last report)" if more else text)

    def close(self) -> None:
        for kind, more in self._held_back.items():
            self._on_error(f"{more} more errors of the kind {kind!r} since the last report")
        self._held_back.clear()


def _foreign(message: Message, attempt: int) -> str:
    return f"{type(message).__name__} of attempt {message.attempt} came through the pipe of attempt {attempt}; ignored"


def create_empty_folder(folder: Path, mode: int) -> None:
    """Creates an attempt's folder, in place of what an earlier daemon left there. Raises OSError."""
    try:
        folder.mkdir(mode=mode)
    except FileNotFoundError:
        for parent in (folder.parent.parent, folder.parent):
            if not parent.exists():
                parent.mkdir(parents=True, exist_ok=True)
                parent.chmod(0o711)  # despite the umask: the job's user has to reach its pipes
        folder.mkdir(mode=mode)
    except FileExistsError:
        if not folder.is_dir() or folder.is_symlink():
            raise
        remove_folder(folder)
        folder.mkdir(mode=mode)


def _create(folder: Path, owner: tuple[int, int] | None) -> None:
    create_empty_folder(folder, 0o700)
    for name in (layout.TO_WORKER, layout.FROM_WORKER):
        os.mkfifo(folder / name, mode=0o600)
        if owner is not None:
            os.chown(folder / name, *owner, follow_symlinks=False)


def send_once(folder: Path, message: ToWorker) -> bool:
    """Sends one message to a worker whose pipes are not open here; False if it has none, or they are full."""
    try:
        writing = _open(folder / layout.TO_WORKER)
    except OSError:
        return False
    try:
        return os.write(writing, b"\n" + encode_message(message)) > 0
    except BlockingIOError:
        return False
    finally:
        os.close(writing)


def read_last_words(folder: Path, attempt: int) -> list[FromWorker]:
    """Reads the last messages of a dead worker from the file beside its pipes."""
    items = islice(Decoder().feed(_read_file(folder / layout.LAST_WORDS)), ITEMS_A_TURN)
    return [item for item in items if isinstance(item, FromWorker) and item.attempt == attempt]


def _read_file(path: Path) -> bytes:
    """At most READ_BYTES of a file that the job's user wrote; empty if it is not a regular file, or has other names."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return b""
    try:
        status = os.fstat(descriptor)
        is_theirs = stat.S_ISREG(status.st_mode) and status.st_nlink == 1  # a hard link may lead to anybody's file
        return os.read(descriptor, READ_BYTES) if is_theirs else b""
    finally:
        os.close(descriptor)


def _open(fifo: Path) -> int:
    descriptor = os.open(fifo, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):  # its folder belongs to the job's user
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a named pipe", str(fifo))
    return descriptor


def _read_some(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, READ_BYTES)
    except BlockingIOError:
        return b""
