"""The two pipes between the daemon and an event listener: its standard input and its standard output."""

import asyncio
import contextlib
import os
from collections.abc import Callable

READ_BYTES = 64 * 1024  # a pipe's default capacity
CLOSED_GRACE_S = 0.5  # a process that dies closes its pipes a moment before its end is seen


class ListenerPipes:
    """The daemon's ends, in the running loop; `stdin` and `stdout` are the listener's, until `close_listener_ends`.

    `on_output` gets what the listener writes; `on_input_closed` is called when it has closed its input but lives on.
    `copy`: a descriptor that also gets the output, as far as it has room; it is closed with the pipes. Only the daemon
    has its ends, so the pipes end with it.
    """

    def __init__(
        self, on_output: Callable[[bytes], None], on_input_closed: Callable[[], None], copy: int | None = None
    ) -> None:
        self._on_output, self._on_input_closed, self._copy = on_output, on_input_closed, copy
        self._loop = asyncio.get_running_loop()
        self._unsent = b""
        self._is_closed = False
        self.stdin, self._writing = os.pipe2(os.O_CLOEXEC)
        try:
            self._reading, self.stdout = os.pipe2(os.O_CLOEXEC)
        except OSError:
            os.close(self.stdin)
            os.close(self._writing)
            raise
        for descriptor in (self._reading, self._writing, *([] if copy is None else [copy])):
            os.set_blocking(descriptor, False)
        self._loop.add_reader(self._reading, self._readable)

    def close_listener_ends(self) -> None:
        """Closes the listener's ends here, once it has them."""
        for descriptor in (self.stdin, self.stdout):
            if descriptor >= 0:
                os.close(descriptor)
        self.stdin = self.stdout = -1

    def write(self, data: bytes) -> None:
        """Writes to its standard input; never waits. It gets one event at a time, so the buffer needs no bound."""
        if self._writing >= 0:
            self._unsent += data
            self._writable()

    def close(self) -> None:
        """Reads what is left of its output, then closes everything."""
        self._is_closed = True
        if self._reading >= 0:
            for _ in range(16):  # 1 MiB; a child that it left behind may print forever
                if self._reading < 0 or not self._readable():
                    break
        self.close_listener_ends()
        self._stop_reading()
        self._stop_writing()
        if self._copy is not None:
            os.close(self._copy)
            self._copy = None

    def _readable(self) -> bool:
        """Reads once; False if there was nothing."""
        try:
            data = os.read(self._reading, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._stop_reading()
            return False
        if self._copy is not None:
            with contextlib.suppress(OSError):  # a slow disk must not delay events
                os.write(self._copy, data)
        self._on_output(data)
        return True

    def _writable(self) -> None:
        try:
            self._unsent = self._unsent[os.write(self._writing, self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:  # the listener has closed its standard input, or has ended
            self._stop_writing()
            self._loop.call_later(CLOSED_GRACE_S, self._report_input_closed)
            return
        if self._unsent:
            self._loop.add_writer(self._writing, self._writable)
        else:
            self._loop.remove_writer(self._writing)

    def _report_input_closed(self) -> None:
        if not self._is_closed:
            self._on_input_closed()

    def _stop_reading(self) -> None:
        if self._reading >= 0:
            self._loop.remove_reader(self._reading)
            os.close(self._reading)
            self._reading = -1

    def _stop_writing(self) -> None:
        if self._writing >= 0:
            self._loop.remove_writer(self._writing)
            os.close(self._writing)
            self._writing = -1
        self._unsent = b""
