"""The daemon's end of the two control pipes of one attempt."""

import asyncio
import contextlib
import errno
import os
import shutil
import stat
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from supervisor.protocol import layout
from supervisor.protocol.codec import Decoder, ProtocolError, encode_message
from supervisor.protocol.messages import STANDBY, FromWorker, Message, ToWorker

READ_BYTES = 64 * 1024  # a pipe's whole default capacity
ITEMS_A_TURN = 128  # lines handled before every other program gets its turn: about a millisecond
ITEMS_AT_THE_END = 4096  # lines of a dead worker that are still heard; an honest one has left a handful
QUEUED_MESSAGES = 64  # a worker that never reads is not sent more than a few flushes
REPORTED_EVERY_S = 10.0  # a worker that talks nonsense is reported, not its every line


class ControlPipes:
    """Two named pipes in `folder`, opened at both ends by each side so that neither side's death closes them.

    Creating it removes whatever an earlier daemon left at `folder`; `found`: its pipes are opened instead, with what is
    still in them. `owner`: uid and gid the pipes are given to.
    `on_message` gets every whole message of this attempt, `on_error` a text about what was not one, rate-limited;
    both are called from the running loop. Raises OSError, with nothing left behind.
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
        self._complaints = _ErrorReports(on_error)
        self._decoder = Decoder()
        self._items: Iterator[Message | ProtocolError] = iter(())
        self._unsent: deque[bytes] = deque()
        self._loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as undo:
            if not found:
                undo.callback(shutil.rmtree, folder, ignore_errors=True)
                _create(folder, owner)
            self._writing = _open(folder / layout.TO_WORKER)
            undo.callback(os.close, self._writing)
            self._reading = _open(folder / layout.FROM_WORKER)
            undo.callback(os.close, self._reading)
            if owner is not None and not found:
                os.chown(folder, *owner)  # last: from here on its owner can change what is in it
            undo.pop_all()
        self.has_received = False
        """Whether the worker has said anything, which it can't before it has its ends of the pipes."""
        self._is_open = True
        self._loop.add_reader(self._reading, self._read)
        if found:
            self._unsent.append(b"\n")  # ends the line that an earlier daemon may have died in
            self._loop.add_writer(self._writing, self._write)

    def send(self, message: ToWorker) -> bool:
        """Sends without waiting; False if the worker has not read for so long that no more is kept for it."""
        if not self._is_open or len(self._unsent) >= QUEUED_MESSAGES:
            return False
        if not self._unsent:
            self._loop.add_writer(self._writing, self._write)
        self._unsent.append(encode_message(message))
        self._write()
        return True

    def move_to_attempt(self, folder: Path, attempt: int) -> None:
        """A standby's pipes are an attempt's from now on, in `folder`. Raises OSError if they can't be moved there.

        Not before it `was_heard`: it would not find them where it looks.
        What it said as a standby is of no interest any more.
        """
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
        self._folder.rename(folder)
        self._folder, self._attempt = folder, attempt

    def set_receiver(self, on_message: Callable[[FromWorker], None], on_error: Callable[[str], None]) -> None:
        """Somebody else hears what comes from now on."""
        self._on_message, self._complaints = on_message, _ErrorReports(on_error)

    def close(self) -> None:
        """Delivers what is still in the pipe, then removes both pipes and the folder. A second call does nothing."""
        if not self._is_open:
            return
        self._is_open = False
        self._loop.remove_reader(self._reading)
        self._loop.remove_writer(self._writing)
        for item in islice(self._rest(), ITEMS_AT_THE_END):
            self._deliver(item)
        self._complaints.close()
        os.close(self._reading)
        os.close(self._writing)
        shutil.rmtree(self._folder, ignore_errors=True)  # only empty pipes; the next daemon removes what remains

    def read_last_words(self) -> list[FromWorker]:
        """What the worker wrote beside the pipes for a daemon that missed its end."""
        return read_last_words(self._folder, self._attempt)

    def detach(self) -> None:
        """Closes this end; the pipes stay, with what is in them, for the next daemon."""
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
        """Reads and hears a bounded number of lines; the rest of them in later turns, before more is read."""
        if not self._is_open:
            return
        self._items = self._decoder.feed(_read_some(self._reading))
        self._hear()

    def _hear(self) -> None:
        if not self._is_open:
            return
        heard = 0
        for item in islice(self._items, ITEMS_A_TURN):
            heard += 1
            self._deliver(item)
        if not self._is_open:  # what was heard made somebody close it
            return
        if heard < ITEMS_A_TURN:
            self._loop.add_reader(self._reading, self._read)
        else:
            self._loop.remove_reader(self._reading)
            self._loop.call_soon(self._hear)

    def _rest(self) -> Iterator[Message | ProtocolError]:
        yield from self._items
        while data := _read_some(self._reading):
            yield from self._decoder.feed(data)

    def _deliver(self, item: Message | ProtocolError) -> None:
        if isinstance(item, ProtocolError):
            self._complaints.add("garbage", str(item))
        elif not isinstance(item, FromWorker):
            self._complaints.add("direction", f"{type(item).__name__} is a message for workers, not from them")
        elif item.attempt == STANDBY != self._attempt:
            pass  # said before it heard that it is an attempt
        elif item.attempt != self._attempt:
            self._complaints.add("attempt", _foreign(item, self._attempt))
        else:
            self.has_received = True
            self._on_message(item)


class _ErrorReports:
    """Passes on what went wrong: the first of each kind at once, then at most one in REPORTED_EVERY_S, with a count."""

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
        self._quiet_until[kind] = now + REPORTED_EVERY_S
        self._on_error(f"{text} ({more} more since the last report)" if more else text)

    def close(self) -> None:
        for kind, more in self._held_back.items():
            self._on_error(f"{more} more of the kind {kind!r} since the last report")
        self._held_back.clear()


def _foreign(message: Message, attempt: int) -> str:
    return f"{type(message).__name__} of attempt {message.attempt} came through the pipe of attempt {attempt}; dropped"


def create_empty_folder(folder: Path, mode: int) -> None:
    """Makes an attempt's folder, empty, in place of whatever an earlier daemon left there. Raises OSError."""
    try:
        folder.mkdir(mode=mode)
    except FileNotFoundError:
        for parent in (folder.parent.parent, folder.parent):
            if not parent.exists():
                parent.mkdir(parents=True, exist_ok=True)
                parent.chmod(0o711)  # whatever the umask: the job's user must get through to its pipes
        folder.mkdir(mode=mode)
    except FileExistsError:
        if not folder.is_dir() or folder.is_symlink():
            raise
        shutil.rmtree(folder)
        folder.mkdir(mode=mode)


def _create(folder: Path, owner: tuple[int, int] | None) -> None:
    create_empty_folder(folder, 0o700)
    for name in (layout.TO_WORKER, layout.FROM_WORKER):
        os.mkfifo(folder / name, mode=0o600)
        if owner is not None:
            os.chown(folder / name, *owner, follow_symlinks=False)


def send_once(folder: Path, message: ToWorker) -> bool:
    """Says one thing to a worker whose pipes nobody else speaks through; False if it has none, or they are full."""
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
    """What a worker that is gone wrote beside its pipes for a daemon that missed its end."""
    items = islice(Decoder().feed(_read_file(folder / layout.LAST_WORDS)), ITEMS_A_TURN)
    return [item for item in items if isinstance(item, FromWorker) and item.attempt == attempt]


def _read_file(path: Path) -> bytes:
    """At most READ_BYTES of a file that the job's user wrote; nothing if it isn't one."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return b""
    try:
        return os.read(descriptor, READ_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
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
