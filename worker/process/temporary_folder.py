"""A temporary folder that a worker deletes, or, if it is killed, the next one of its user in the same place."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "stepkeeper-worker-"
LEFT_AFTER_S = 60.0  # a folder that was just made is not locked yet


@contextlib.contextmanager
def temporary_folder(where: Path | None = None) -> Iterator[Path]:
    """`where`: in which folder it is made; None: where temporary files are. Raises OSError."""
    with contextlib.ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix=PREFIX, dir=where, ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(made))
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        _remove_left(folder)
        yield folder


def _remove_left(own: Path) -> None:
    """Removes what workers of this user that were killed have left beside `own`.

    A live one holds the lock of its folder, also if it is of another container.
    """
    for left in own.parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            folder = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            stack.callback(os.close, folder)
            found = os.fstat(folder)
            if left != own and found.st_uid == os.geteuid() and time.time() - found.st_mtime > LEFT_AFTER_S:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
