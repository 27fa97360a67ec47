"""A file system in user space whose server stops to answer: what a dead NFS or FUSE mount is for a program. Needs root.

It speaks just enough of the kernel's protocol (linux/fuse.h, 7.31) to show one file that can be opened; a read
gets no answer until its process is killed, or not even then. Nor does any other look at it, once `answers_attributes`
is false.
"""

import contextlib
import ctypes
import errno
import os
import struct
import subprocess
import threading
from pathlib import Path

LOOKUP, GETATTR, OPEN, READ, INIT = 1, 3, 14, 15, 26
FORGET, INTERRUPT, BATCH_FORGET = 2, 36, 42
_HEADER = struct.Struct("=IIQQIII4x")
_ATTRIBUTES = struct.Struct("=QQQQQQIIIIIIIIII")
SIZE = 1 << 20


class SilentMount:
    """Mounted at `at` while in use. `file` is the one that nobody can read, and has this name.

    `holds_killed`: who reads it can't even be killed while it is mounted (state D).
    """

    def __init__(self, at: Path, *, holds_killed: bool = False, name: str = "file") -> None:
        self.at = at
        self._holds_killed = holds_killed
        self.file = at / name
        self.answers_attributes = True
        self._device = -1
        self._unanswered: list[int] = []  # reads of processes that may not even be killed

    def __enter__(self) -> "SilentMount":
        self.at.mkdir(parents=True, exist_ok=True)
        self._device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"silent", os.fsencode(self.at), b"fuse.silent", 0, options.encode()) != 0:
            number = ctypes.get_errno()
            os.close(self._device)
            raise OSError(number, os.strerror(number), str(self.at))
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for unique in self._unanswered:
            self._reply(unique, errno.EIO)
        self.abort()
        subprocess.run(["umount", "-l", str(self.at)], check=False)
        os.close(self._device)

    def abort(self) -> None:
        """Ends what waits for it, with an error, and what comes later too."""
        subprocess.run(["umount", "-f", str(self.at)], check=False, stderr=subprocess.DEVNULL)

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._device, 1 << 20)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue
                return
            _, opcode, unique, node, *_ = _HEADER.unpack_from(request)
            if opcode == READ and self._holds_killed:
                self._unanswered.append(unique)
            is_silent = opcode in (GETATTR, LOOKUP) and not self.answers_attributes
            is_held = opcode == INTERRUPT and self._holds_killed
            if is_silent or is_held or opcode in (READ, FORGET, BATCH_FORGET):
                continue  # no answer
            if opcode == INTERRUPT:  # the reader was killed
                (interrupted,) = struct.unpack_from("=Q", request, _HEADER.size)
                self._reply(interrupted, errno.EINTR)
                continue
            answer = _answer(opcode, node, request[_HEADER.size :], self.file.name)
            if isinstance(answer, bytes):
                self._reply(unique, 0, answer)
            else:
                self._reply(unique, answer)

    def _reply(self, unique: int, number: int, body: bytes = b"") -> None:
        """`number`: of an error, 0: there is none. Who asked may be gone, and so may the mount."""
        with contextlib.suppress(OSError):
            os.write(self._device, struct.pack("=IiQ", 16 + len(body), -number, unique) + body)


def _answer(opcode: int, node: int, body: bytes, name: str) -> bytes | int:
    """The body of an answer, or an error."""
    if opcode == INIT:
        return struct.pack("=IIIIHHIIHH8I", 7, 31, 65536, 0, 16, 12, 65536, 1, 32, 0, *[0] * 8)
    if opcode == LOOKUP:
        if body.rstrip(b"\0") != name.encode():
            return errno.ENOENT
        return struct.pack("=QQQQII", 2, 0, 0, 0, 0, 0) + _attributes(2)
    if opcode == GETATTR:
        return struct.pack("=QII", 0, 0, 0) + _attributes(node)
    if opcode == OPEN:
        return struct.pack("=QII", 1, 0, 0)
    return errno.ENOSYS


def _attributes(node: int) -> bytes:
    mode, size = (0o40755, 0) if node == 1 else (0o100644, SIZE)
    return _ATTRIBUTES.pack(node, size, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
