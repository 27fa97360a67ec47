"""Reads the one line that a process of a job's user answers with."""

import errno
import os
import select
import time

READ_BYTES = 64 * 1024


def read_answer(descriptor: int, limit_s: float, most_bytes: int) -> bytes:
    """The line; blocks. Raises OSError if it does not come in time, is longer, or the process ends before."""
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
