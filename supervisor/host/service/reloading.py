"""What the daemon leaves to the one that it executes in its place (`reload`): its sockets, its configuration, and that
it is detached.

The sockets stay open across execve(2). Clients that connect meanwhile wait in the kernel's queue and are answered by
the next daemon, so none is told that no daemon runs there. An environment variable says which descriptors are what:
unlike a file, it arrives if and only if they do. It counts only for the process that set it, and only for descriptors
that still lead to the same sockets.

The configuration is what the check before the reload has read (`next_daemon`), not what the files have become since:
nobody is there to go back to any more once they are found to be wrong.
"""

import contextlib
import os
import socket
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from supervisor.host.user_folders.guarded_open import guarded_folder
from supervisor.protocol.wire.codec import decode_record, encode_record, parse_object
from supervisor.protocol.wire.limits import Items

VARIABLE = "STEPKEEPER_RELOAD"
MAX_LISTENERS = 1000


@dataclass(frozen=True, slots=True)
class ListenerEntry:
    """A listening socket. `place`: its address and settings, as text; `inode`: of the socket itself.

    `file`, `file_inode`: of a unix socket.
    """

    place: str
    descriptor: int
    inode: int
    file: str | None = None
    file_inode: int | None = None


@dataclass(frozen=True, slots=True)
class _Left:
    pid: int
    listeners: Annotated[tuple[ListenerEntry, ...], Items(MAX_LISTENERS)] = ()
    configuration: int | None = None
    configuration_inode: int | None = None


@dataclass(frozen=True, slots=True)
class TakenListener:
    """A socket of the daemon before. `file_inode`: of a unix socket's file."""

    listener: socket.socket
    file_inode: int | None


class Reload:
    """What this process was left by the daemon that it was before, if any, and what it leaves to the next one."""

    def __init__(self, left: Iterable[ListenerEntry] | None = None, checked: bytes = b"") -> None:
        self.was_daemon = left is not None
        """Whether this process was a daemon already; it is in the background then if it is meant to be."""
        self.checked = checked
        """The configuration as the check before the reload left it; empty if it left none."""
        self._inherited = {entry.place: entry for entry in left or ()}
        self._kept: list[ListenerEntry] = []

    @classmethod
    def of_environment(cls, environment: MutableMapping[str, str]) -> "Reload":
        """Takes the variable out of the environment. No child inherits the sockets from now on."""
        text = environment.pop(VARIABLE, None)
        if text is None:
            return cls()
        try:
            left = decode_record(parse_object(text), _Left, VARIABLE)
        except ValueError:  # another version's
            _close_all_listeners()
            return cls([])
        if left.pid != os.getpid():
            return cls()
        checked = _read_checked(left.configuration, left.configuration_inode)
        return cls([entry for entry in left.listeners if _is_there(entry.descriptor, entry.inode)], checked)

    def take(self, place: str) -> "TakenListener | None":
        """The socket that the daemon before had at `place`; None if it had none, or its file was replaced."""
        entry = self._inherited.get(place)
        if entry is None or (entry.file is not None and _inode_of(Path(entry.file)) != entry.file_inode):
            return None
        del self._inherited[place]
        listener = socket.socket(fileno=entry.descriptor)
        listener.setblocking(False)
        return TakenListener(listener, entry.file_inode)

    def close_rest(self) -> None:
        """Closes the sockets that the configuration has no more, and removes their files."""
        for entry in self._inherited.values():
            os.close(entry.descriptor)
            path = None if entry.file is None else Path(entry.file)
            if path is not None and _inode_of(path) == entry.file_inode:
                with contextlib.suppress(OSError), guarded_folder(path.parent) as folder:
                    os.unlink(path.name, dir_fd=folder)
        self._inherited.clear()

    def keep(self, place: str, listener: socket.socket, file: tuple[Path, int | None] | None = None) -> None:
        """Leaves this socket to the next daemon; `file`: of a unix socket, with the inode that it had."""
        descriptor = listener.detach()
        path, inode = (None, None) if file is None else (str(file[0]), file[1])
        self._kept.append(ListenerEntry(place, descriptor, os.fstat(descriptor).st_ino, path, inode))

    def environment(self, environment: Mapping[str, str], checked: int | None = None) -> dict[str, str]:
        """The environment in which the next daemon is executed. To be called right before that.

        `checked`: a descriptor of what it gets as `checked`.
        """
        for entry in self._kept:
            os.set_inheritable(entry.descriptor, True)
        inode = None
        if checked is not None:
            os.set_inheritable(checked, True)
            inode = os.fstat(checked).st_ino
        return {**environment, VARIABLE: encode_record(_Left(os.getpid(), tuple(self._kept), checked, inode))}


def _is_there(descriptor: int, inode: int | None) -> bool:
    """Whether the descriptor is that file; then no child gets it any more."""
    try:
        if os.fstat(descriptor).st_ino != inode:
            return False
        os.set_inheritable(descriptor, False)
    except OSError:
        return False
    return True


def _read_checked(descriptor: int | None, inode: int | None) -> bytes:
    if descriptor is None or not _is_there(descriptor, inode):
        return b""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read()


def _close_all_listeners() -> None:
    """So that they can be opened anew: they would be in use, by nobody who accepts."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - names
        with contextlib.suppress(OSError):
            found = socket.socket(fileno=descriptor)
            if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                found.close()
            else:
                found.detach()


def _inode_of(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None
