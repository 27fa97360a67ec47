"""What a command prints that the daemon runs and waits for, such as a health check or a hook."""

import contextlib
import os
import select
import subprocess
import time

PIPE_BYTES = 1 << 20  # what a pipe may hold: /proc/sys/fs/pipe-max-size


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
