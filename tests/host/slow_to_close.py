"""A descriptor that takes as long to close as whoever made it likes, to be attached to what a daemon receives."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

PATIENCE_S = 10.0


def slow_to_close(limit_s: int) -> tuple[socket.socket, socket.socket]:
    """A connection whose first end, when it is closed, waits for its data to be read."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs = server.accept()[0]
    ours.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            ours.send(bytes(1 << 16))
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, limit_s))
    return ours, theirs


@contextlib.contextmanager
def freed_late(theirs: socket.socket) -> Iterator[threading.Event]:
    """Lets it be closed after PATIENCE_S, or at the end; whether somebody waited so long is in the event."""
    is_over, was_held = threading.Event(), threading.Event()
    freeing = threading.Thread(target=lambda: is_over.wait(PATIENCE_S) or (was_held.set(), theirs.close()))
    freeing.start()
    yield was_held
    is_over.set()
    freeing.join()
    theirs.close()
