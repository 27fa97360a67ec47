"""What a dead worker left in memory, restored from there: nothing of it goes over the disk.

The daemon hands the file over at a socket. It is proven here, as by whoever writes it to the disk
(`supervisor/protocol/memory_tier/layout.py`). Then a folder is made that looks like the checkpoint: its data files are
links to the file in memory, and their indexes name the places in there. So TensorFlow can read it as any checkpoint, if
it has to: its checksums, for which all bytes are read once more, are added then.
"""

import contextlib
import mmap
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from supervisor.protocol import layout
from supervisor.protocol.available_memory import memory_threads
from supervisor.protocol.checkpoints.manifest import FileRecord
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.memory_tier.layout import BundlePlace, NoCopy, WholeCopy, prove_newest
from supervisor.protocol.tensorbundle import crc32c, entry, sstable
from supervisor.protocol.wire.messages import Go
from worker.process.attempt import Attempt
from worker.process.temporary_folder import temporary_folder

SOCKET_TIMEOUT_S = 10.0  # the daemon's loop answers at once, unless it was just killed
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - for small files in a folder of our own; a disk may be full
PIECE_BYTES = 4 << 20
NOT_HASHED = "in memory"  # in place of a file's hash: the copy's own one covers all of it


class MemoryCheckpoint:
    """The newest whole state in a file in memory."""

    def __init__(self, descriptor: int, job: str, attempt: int) -> None:
        """Takes the descriptor of the file, and proves what `attempt` left there: reads all of it.

        Raises OSError, ValueError (NoCopy) if there is nothing.
        """
        self._descriptor = descriptor
        self._copy: WholeCopy | None = None
        try:
            self.content = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
            """All of the file, which is what the data files of the folder are."""
            self._copy = prove_newest(self.content, job, attempt, memory_threads())
        except BaseException:
            os.close(descriptor)
            raise
        self.name: CheckpointName = self._copy.description.name
        """The checkpoint that it is or becomes."""

    def close(self) -> None:
        """Lets go of the memory."""
        if self._copy is not None:
            self._copy = None
            self.content = memoryview(b"")
            os.close(self._descriptor)

    @contextlib.contextmanager
    def as_folder(self) -> Iterator[Path]:
        """A folder that can be restored as the checkpoint's own; at the end it is deleted, and the memory let go.

        Raises OSError.
        """
        with contextlib.closing(self), contextlib.ExitStack() as place:
            try:
                folder = self._make_folder(SHARED_MEMORY, place)
            except OSError:  # it is everybody's, and may be full
                folder = self._make_folder(None, place)
            yield folder

    def _make_folder(self, where: Path | None, place: contextlib.ExitStack) -> Path:
        """`where`: None: where temporary files are. `place`: deletes it."""
        with contextlib.ExitStack() as made:
            folder = made.enter_context(temporary_folder(where)) / str(self.name)
            folder.mkdir()
            self._fill(folder)
            place.push(made.pop_all())
            return folder

    def add_checksums(self, folder: Path) -> None:
        """Has TensorFlow's reader take all of the folder: it asks for a checksum of each tensor. Raises OSError."""
        assert self._copy is not None
        for bundle in self._copy.description.bundles:
            (folder / f"{bundle.prefix}.index").write_bytes(_encode_index(self._copy, bundle, with_checksums=True))

    def _fill(self, folder: Path) -> None:
        assert self._copy is not None
        description, half = self._copy.description, self._copy.half
        sizes = {file.name: file.size for file in description.files}
        for file in description.files:
            (folder / file.name).write_bytes(half[file.offset : file.offset + file.size])
        for bundle in description.bundles:
            data, index = f"{bundle.prefix}.data-00000-of-00001", f"{bundle.prefix}.index"
            (folder / data).symlink_to(f"/proc/self/fd/{self._descriptor}")
            # others are small, and TensorFlow reads them in any case
            content = _encode_index(self._copy, bundle, with_checksums=bundle.prefix != layout.PREFIX)
            (folder / index).write_bytes(content)
            sizes |= {data: bundle.size, index: len(content)}
        manifest = description.manifest(FileRecord(name, size, NOT_HASHED) for name, size in sizes.items())
        (folder / layout.MANIFEST).write_bytes(manifest.to_bytes())


def _encode_index(copy: WholeCopy, bundle: BundlePlace, *, with_checksums: bool) -> bytes:
    """The index of a bundle whose data file is the whole file in memory.

    Without checksums only texts have one, which TensorFlow reads in any case.
    """
    content = np.frombuffer(copy.half, np.uint8)[bundle.offset : bundle.offset + bundle.size]
    records = {b"": entry.HEADER}
    for tensor in bundle.tensors:
        crc = tensor.crc or 0
        if tensor.crc is None and with_checksums:
            crc = _checksum(content[tensor.offset : tensor.offset + tensor.size])
        place = copy.begin + bundle.offset + tensor.offset
        records[tensor.name.encode()] = entry.encode_tensor(
            tensor.dtype, tensor.shape, place, tensor.size, sstable.mask(crc)
        )
    return sstable.encode_table(sorted(records.items()))


def _checksum(content: Any) -> int:
    """Of an array of bytes."""
    crc = 0
    for at in range(0, len(content), PIECE_BYTES):
        crc = crc32c.extend(crc, content[at : at + PIECE_BYTES])
    return crc


def open_memory(attempt: Attempt, go: Go) -> MemoryCheckpoint | None:
    """What the daemon offers with `go`, if that is whole and newer than the checkpoint that it names; else None."""
    if go.memory is None or go.memory_attempt is None:
        return None
    try:
        memory = MemoryCheckpoint(_receive_file(go.memory), attempt.launch.job, go.memory_attempt)
    except (OSError, ValueError, MemoryError) as error:
        text = f"cannot restore what attempt {go.memory_attempt} left in memory: {error}; an older state is restored"
        attempt.reporter.show_message(text)
        return None
    on_disk = None if go.restore is None else layout.parse_name(Path(go.restore).name)
    if on_disk is not None and on_disk.step >= memory.name.step:
        memory.close()
        return None
    return memory


def _receive_file(name: str) -> int:
    """The file that is handed over at an abstract socket. Raises OSError, NoCopy.

    Once the daemon has closed the socket, anybody may take its name and hand over a file of theirs.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(SOCKET_TIMEOUT_S)
        connection.connect(f"\0{name}")
        _, descriptors, _, _ = socket.recv_fds(connection, 100, 1, socket.MSG_CMSG_CLOEXEC)
    if not descriptors:
        raise NoCopy("the daemon did not hand it over")
    owner = os.fstat(descriptors[0]).st_uid
    if owner != os.geteuid():
        os.close(descriptors[0])
        raise NoCopy(f"what was handed over is a file of uid {owner}")
    return descriptors[0]
