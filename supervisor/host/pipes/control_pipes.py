"""The daemon's ends of the two control pipes of one attempt, through which it and the worker send messages.

They are named pipes in the attempt's folder, and each side opens both of them for reading and writing. So the death of
one side does not close them: a worker can write while no daemon runs, and the next daemon opens the pipes again and
reads what is in them.

A worker that writes without end must not delay other programs. So each turn of the event loop handles a bounded number
of its lines, and of those of all workers as many as their share of the turn has room for, at least one of each. Of each
type only so many messages are passed on as its `rate` allows (`message_filter.py`); and a pipe out of which more comes
than any sane worker writes is left full for a while: a worker that floods it waits, and costs next to nothing.

The folder belongs to the job's user. Nothing in it is looked at that could keep the event loop waiting
(`host/user_folders/mounted_over.py`): whoever mounts something over it is not adopted, and has no last words.
"""

import asyncio
import contextlib
import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from supervisor.host.pipes.message_filter import ErrorReports, MessageFilter, RefusedMessages
from supervisor.host.service.loop_share import LoopShare
from supervisor.host.user_folders.folder_removal import remove_folder, remove_soon, try_to_remove_folder
from supervisor.host.user_folders.mounted_over import folder_of_user, open_in_folder_of_user
from supervisor.protocol import layout
from supervisor.protocol.wire.codec import ProtocolError
from supervisor.protocol.wire.limits import TokenBucket
from supervisor.protocol.wire.lines import Decoder, encode_message
from supervisor.protocol.wire.messages import FromWorker, Message, ToWorker

READ_BYTES = 64 * 1024  # a pipe's whole default capacity
ITEMS_A_TURN = 128  # lines handled in one turn of the event loop; each takes 0.05 to 1 ms
ITEMS_AT_CLOSE = 4096  # lines of a dead worker that are still handled; a sane one leaves a handful
QUEUED_MESSAGES = 64  # more than a worker that reads ever leaves unread
LINES_A_SECOND, LINES_AT_ONCE = 500, 5_000  # read of one pipe; worker.Run writes some 30, and queues a thousand
BYTES_A_SECOND, BYTES_AT_ONCE = 256 << 10, 4 << 20
LONGEST_PAUSE_S = 1.0  # so that what a worker says after a flood is heard soon


class ControlPipes:
    """The two pipes in `folder`.

    They are created in place of what an earlier daemon left there, or, with `is_there`, opened with what is still in
    them. `owner`: uid and gid of the pipes. `on_message` gets every valid message of this attempt, `on_error` a text
    about invalid ones, rate-limited; both are called from the running loop. `share`: of the event loop, for what all
    workers say; None: one of its own. Raises OSError, with nothing left behind.
    """

    def __init__(
        self,
        folder: Path,
        attempt: int,
        owner: tuple[int, int] | None,
        on_message: Callable[[FromWorker], None],
        on_error: Callable[[str], None],
        is_there: bool = False,
        share: LoopShare | None = None,
    ) -> None:
        self._folder = folder
        self._share = LoopShare() if share is None else share
        self._on_message = on_message
        self._filter = MessageFilter(attempt, on_error)
        self._decoder = Decoder()
        self._items: Iterator[Message | ProtocolError] = iter(())
        self._unsent: deque[bytes] = deque()
        self._lines = TokenBucket(LINES_A_SECOND, LINES_AT_ONCE)
        self._bytes = TokenBucket(BYTES_A_SECOND, BYTES_AT_ONCE)
        self._pause_s = 0.0
        self._loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as undo:
            if not is_there:
                undo.callback(try_to_remove_folder, folder)
                _create(folder, owner)
            self._writing = _open(folder / layout.TO_WORKER)
            undo.callback(os.close, self._writing)
            self._reading = _open(folder / layout.FROM_WORKER)
            undo.callback(os.close, self._reading)
            if owner is not None and not is_there:
                os.chown(folder, *owner)  # last: from now on its owner can change the files
            undo.pop_all()
        self.has_received = False
        """Whether a message came; if so, the worker has opened its ends of the pipes."""
        self._is_open = True
        self._loop.add_reader(self._reading, self._read)
        if is_there:
            self._unsent.append(b"\n")  # ends a line that an earlier daemon may have left unfinished
            self._loop.add_writer(self._writing, self._write)

    @property
    def refusals(self) -> RefusedMessages:
        """What was not passed on of what the worker wrote."""
        return self._filter.refusals

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

        Not before it `has_received`: the worker would not find them where it looks.
        Messages that it sent as a standby are dropped.
        """
        remove_folder(folder)
        self._folder.rename(folder)
        self._folder, self._filter.attempt = folder, attempt

    def set_receiver(self, on_message: Callable[[FromWorker], None], on_error: Callable[[str], None]) -> None:
        """Changes who gets messages and errors from now on."""
        self._on_message, self._filter.reports = on_message, ErrorReports(on_error)

    @property
    def folder(self) -> Path:
        """Where the pipes are, and the last words."""
        return self._folder

    def close(self, *, leaves_folder: bool = False) -> None:
        """Delivers what is still in the pipe, then removes the pipes and the folder. A second call does nothing.

        `leaves_folder`: it stays, for a daemon that may have to read the last words once more.
        """
        if not self._stop_watching():
            return
        for item in islice(self._rest(), ITEMS_AT_CLOSE):
            self._deliver(item)
        self._filter.reports.close()
        os.close(self._reading)
        os.close(self._writing)
        if not leaves_folder:
            remove_soon(self._folder)  # the next daemon removes what remains

    def read_last_words(self) -> list[FromWorker]:
        """Reads the last message, which the worker also wrote to the file beside the pipes: no daemon may have run, or
        the pipe been full."""
        return read_last_words(self._folder, self._filter.attempt)

    def detach(self) -> None:
        """Closes our ends; the pipes and what is in them stay for the next daemon."""
        if self._stop_watching():
            os.close(self._reading)
            os.close(self._writing)

    def _stop_watching(self) -> bool:
        """Nothing is received or sent any more; False if that was so before."""
        if not self._is_open:
            return False
        self._is_open = False
        self._loop.remove_reader(self._reading)
        self._loop.remove_writer(self._writing)
        return True

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
        count, is_cut, began_at = 0, False, self._loop.time()
        for item in islice(self._items, ITEMS_A_TURN):
            count += 1
            self._deliver(item)
            ended_at = self._loop.time()
            self._share.use(ended_at - began_at)
            began_at = ended_at
            if is_cut := self._share.is_used_up:
                break
        if not self._is_open:  # a message caused the close
            return
        self._pause_s = max(self._pause_s, self._lines.spend(self._loop.time(), count))
        if is_cut or count == ITEMS_A_TURN:
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
        if self._filter.passes(item, self._loop.time()):
            self.has_received = True
            self._on_message(item)


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
        with folder_of_user(folder):  # nothing else is removed
            pass
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
    items = deque(Decoder().feed(_read_file(folder / layout.LAST_WORDS)), ITEMS_A_TURN)
    return [item for item in items if isinstance(item, FromWorker) and item.attempt == attempt]


def _read_file(path: Path) -> bytes:
    """The last READ_BYTES of what the job's user wrote; empty if it is not a regular file, or has other names."""
    try:
        descriptor = open_in_folder_of_user(path.parent, path.name, os.O_RDONLY)
    except OSError:
        return b""
    try:
        status = os.fstat(descriptor)
        is_theirs = stat.S_ISREG(status.st_mode) and status.st_nlink == 1  # a hard link may lead to anybody's file
        if not is_theirs:
            return b""
        os.lseek(descriptor, max(0, status.st_size - READ_BYTES), os.SEEK_SET)
        return os.read(descriptor, READ_BYTES)
    finally:
        os.close(descriptor)


def _open(fifo: Path) -> int:
    descriptor = open_in_folder_of_user(fifo.parent, fifo.name, os.O_RDWR)
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):  # its folder belongs to the job's user
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a named pipe", str(fifo))
    return descriptor


def _read_some(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, READ_BYTES)
    except BlockingIOError:
        return b""
