"""What children print for the daemon, read within limits: one line in answer, or all until a command has ended."""

import contextlib
import errno
import os
import select
import subprocess
import time

READ_BYTES = 64 * 1024
PIPE_BYTES = 1 << 20  # what a pipe may hold: /proc/sys/fs/pipe-max-size


def read_answer(descriptor: int, limit_s: float, most_bytes: int) -> bytes:
    """The one line with which a process of a job's user answers; blocks.

    Raises OSError if it does not come in time, is longer, or the process ends before.
    """
    ends_at = time.monotonic() + limit_s
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    content = b""
    while not content.endswith(b"\n"):
        if not poll.poll(max(0.0, ends_at - time.monotonic()) * 1000):
            raise TimeoutError(errno.ETIMEDOUT, f"its user's process took longer than {limit_s:g} s")
        piece = os.read(descriptor, READ_BYTES)
        if not piece:
            raise OSError(errno.EAGAIN, "its user's process ended without an answer")
        content += piece
        if len(content) > most_bytes:
            raise OSError(errno.EMSGSIZE, f"its user's process answered with more than {most_bytes} bytes")
    return content


def wait_and_read(child: subprocess.Popen[bytes], output: int, timeout_s: float, most: int) -> bytes:
    """Waits until a child has ended; the last bytes of what it printed, at most `most`.

    `output`: the reading end of the pipe that it prints into. So a child that prints for ever fills neither disk nor
    memory. What prints into the pipe after the child's end is not waited for.

    Raises subprocess.TimeoutExpired, OSError.
    """
    until, kept, ended = time.monotonic() + timeout_s, b"", os.pidfd_open(child.pid)
    try:
        os.set_blocking(output, False)
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        poll.register(output, select.POLLIN)
        while (left_s := until - time.monotonic()) > 0:
            ready = dict(poll.poll(1000 * left_s))
            if output in ready:
                with contextlib.suppress(BlockingIOError):
                    piece = os.read(output, PIPE_BYTES)  # all that is in it
                    kept = (kept + piece)[-most:]
                    if not piece:
                        poll.unregister(output)
            if ended in ready:
                return kept
    finally:
        os.close(ended)
    raise subprocess.TimeoutExpired(child.args, timeout_s)
