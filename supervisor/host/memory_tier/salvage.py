"""Writes the state that a dead worker left in memory as a checkpoint, in a process of the job's user.

Nothing of what lies in the memory is read by the daemon: whoever can write it could write anything. The process gets it
as its standard input, and ends at its time limit or with the daemon (nobody reads its answer any more). As everywhere,
the checkpoint exists once it is renamed; whatever ends the process before that leaves a `.partial` folder, which the
next worker deletes.
"""

import contextlib
import errno
import mmap
import os
import resource
import select
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from supervisor.host.child_output import read_answer
from supervisor.host.children import Identity, own_command, start_own
from supervisor.host.memory_tier.held_memory import HeldMemory, require_own_pages
from supervisor.protocol import layout, mounts
from supervisor.protocol.checkpoints import removal
from supervisor.protocol.checkpoints.directory import committed_checkpoints, highest_attempt
from supervisor.protocol.checkpoints.manifest import FileRecord
from supervisor.protocol.checkpoints.new_folder import NewFolder
from supervisor.protocol.checkpoints.retention import RetentionPolicy
from supervisor.protocol.disk_space import DISK_FULL, full_disk_reason
from supervisor.protocol.memory_tier.layout import BundlePlace, Description, NoCopy, prove_newest
from supervisor.protocol.tensorbundle import crc32c, entry, sstable
from supervisor.protocol.wire.codec import ProtocolError, decode_record, encode_record, parse_object

LIMIT_S = 30.0  # to start, and to write what is small
SLOWEST_BYTES_S = 20e6  # of a disk that is waited for
MEMORY_BYTES = 2 << 30  # address space beside the file itself: the description of a million tensors
PIECE_BYTES = 4 << 20
MAX_ANSWER_BYTES = 64 * 1024
MAX_TEXT = 2000  # characters of an error


@dataclass(frozen=True, slots=True)
class SalvageRequest:
    """What is to be written where. `attempt`: the one whose worker is dead. `mount`: the file system that the directory
    was on, in words, None if that is not known. `make_room`: whether a full disk may cost older checkpoints.
    `retention`: which ones stay afterwards, None: all; a job that keeps dying may never come to a save of its own.
    `restored`: the name of the checkpoint from which the attempt began, if it is one of the job's."""

    directory: Path
    job: str
    attempt: int
    mount: str | None = None
    make_room: bool = False
    retention: RetentionPolicy | None = None
    restored: str | None = None


@dataclass(frozen=True, slots=True)
class Salvaged:
    """A checkpoint was committed. `save_s`: how long that took, `wall_at`: when the state was copied."""

    name: str
    step: int
    size_bytes: int
    save_s: float
    wall_at: float


@dataclass(frozen=True, slots=True)
class NotSalvaged:
    """Nothing was written, and why. `errno`: of the disk, which may be waited for; None: there is nothing to write."""

    text: str
    errno: int | None = None


def salvage(held: HeldMemory, request: SalvageRequest, user: Identity | None) -> Salvaged | NotSalvaged:
    """Has it written; blocks until that is done, or its time limit has passed. Raises OSError.

    `user`: whom the process becomes; None: it stays the daemon's own.
    """
    ids = ["", "", ""] if user is None else [str(user.uid), str(user.gid), ",".join(map(str, user.groups))]
    command = own_command("supervisor.host.memory_tier.salvage", *ids, encode_record(request))
    limit_s = LIMIT_S + held.size_bytes / SLOWEST_BYTES_S
    with start_own(command, {}, stdin=held.descriptor, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            content = read_answer(process.stdout.fileno(), limit_s, MAX_ANSWER_BYTES)
        finally:
            process.kill()
    try:
        body = parse_object(content)
        if "failure" in body:
            failure = decode_record(body["failure"], NotSalvaged, "failure")
            return NotSalvaged(failure.text[:MAX_TEXT], failure.errno)
        salvaged = decode_record(body["result"], Salvaged, "result")
    except (ProtocolError, KeyError, TypeError) as error:
        raise OSError(errno.EBADMSG, f"its user's process gave no valid answer: {str(error)[:200]}") from error
    if layout.parse_name(salvaged.name) != layout.CheckpointName(salvaged.step, request.attempt):
        raise OSError(errno.EBADMSG, f"its user's process wrote {salvaged.name[:100]!r}")
    return salvaged


# --- in the process --------------------------------------------------------------------------------------------------


def main() -> None:
    """Becomes the user of the arguments, writes what standard input holds, and answers."""
    uid, gid, groups, text = sys.argv[1:]
    request = decode_record(parse_object(text), SalvageRequest, "request")
    threading.Thread(target=_end_with_daemon, daemon=True).start()
    crc32c.load_library()  # which the user may not be able to read
    size = os.fstat(0).st_size
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_BYTES, size + MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if uid:
        Identity(int(uid), int(gid), tuple(int(group) for group in groups.split(",") if group)).assume()
    os.write(1, encode_record(_answer(request)).encode() + b"\n")


def _end_with_daemon() -> None:
    poll = select.poll()
    poll.register(1, 0)  # POLLERR comes unasked: the pipe has no reader
    poll.poll()
    os._exit(1)


def _answer(request: SalvageRequest) -> dict[str, Salvaged | NotSalvaged]:
    try:
        _require_no_holes()
        memory = memoryview(mmap.mmap(0, 0, access=mmap.ACCESS_READ))  # until the process ends
        return {"result": _write_newest(memory, request)}
    except (NoCopy, ValueError) as error:
        failure = NotSalvaged(str(error)[:MAX_TEXT])
    except OSError as error:
        failure = NotSalvaged(full_disk_reason(error, request.directory)[:MAX_TEXT], error.errno or errno.EIO)
    except MemoryError:
        failure = NotSalvaged("there is not enough memory to read it", errno.ENOMEM)
    except Exception as error:  # noqa: BLE001 - the daemon says it
        failure = NotSalvaged(f"{error!r:.200}", errno.EBADMSG)
    return {"failure": failure}


def _require_no_holes() -> None:
    """Raises NoCopy if the job's user has made some since the daemon took hold of the memory."""
    try:
        require_own_pages(0)
    except OSError as error:
        raise NoCopy(error.strerror) from error


def _write_newest(memory: memoryview, request: SalvageRequest) -> Salvaged:
    """Commits the newest copy that is whole. Raises NoCopy if none is, or none is newer than what is on the disk."""
    began_at = time.monotonic()
    copy = prove_newest(memory, request.job, request.attempt)
    description = copy.description
    size_bytes = write_checkpoint(copy.half, description, request)
    if request.retention is not None:
        with contextlib.suppress(OSError):  # the worker's own next save tries again
            removal.delete_expendable(request.directory, request.retention, description.name, {}, _spared(request))
    save_s = time.monotonic() - began_at
    return Salvaged(str(description.name), description.step, size_bytes, save_s, description.created_wall_at)


def write_checkpoint(half: memoryview, description: Description, request: SalvageRequest) -> int:
    """Commits a proven copy; returns its size. Raises NoCopy if there is nothing to be done; OSError."""
    place = _TargetPlace(request)
    while True:
        try:
            return _write_once(half, description, request.directory, place)
        except OSError as error:
            is_full = error.errno in DISK_FULL
            if not (is_full and request.make_room):
                raise
            place.require()  # what is beneath the mount point is not ours to delete
            if removal.delete_oldest(request.directory, _spared(request)) is None:
                raise


class _TargetPlace:
    """The file system that the directory is on, which may be unmounted, or mounted over, while a checkpoint is written.

    Raises OSError, here and in `require`, where it is another than that of the request.
    """

    def __init__(self, request: SalvageRequest) -> None:
        self._directory = request.directory
        self._mount = request.mount
        self._mount, self._device = self._require_mount(), mounts.device_of(self._directory)

    def require(self) -> None:
        """That it is still the same. Call it before anything in the directory is changed."""
        mount = self._require_mount()
        if mounts.device_of(self._directory) != self._device:
            text = f"another volume is mounted there ({mount}) than when the checkpoint was begun"
            raise OSError(errno.ENODEV, text, str(self._directory))

    def _require_mount(self) -> str:
        mount = str(mounts.mount_of(self._directory))
        if self._mount not in (None, mount):
            raise OSError(errno.ENODEV, f"it was on {self._mount}, and is on {mount} now", str(self._directory))
        return mount


def _spared(request: SalvageRequest) -> list[layout.CheckpointName]:
    """The checkpoint from which the dead attempt began: newer ones may be suspect."""
    name = None if request.restored is None else layout.parse_name(request.restored)
    return [] if name is None else [name]


def _write_once(half: memoryview, description: Description, directory: Path, place: _TargetPlace) -> int:
    name = description.name

    def check() -> None:
        place.require()
        _require_newer(directory, name)

    check()
    partial = directory / name.partial
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with NewFolder(partial, through_cache=True) as folder:
            for bundle in description.bundles:
                write_bundle(folder, bundle, half[bundle.offset : bundle.offset + bundle.size])
            for file in description.files:
                folder.create(file.name).write(half[file.offset : file.offset + file.size])
            written = folder.finish().items()
            manifest = description.manifest(FileRecord(file, size, digest) for file, (size, digest) in written)
            folder.add(layout.MANIFEST, manifest.to_bytes())
            folder.commit(directory / str(name), check)
        return manifest.size_bytes
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _require_newer(directory: Path, name: layout.CheckpointName) -> None:
    """Raises NoCopy if the attempt saved this step or a later one itself, or a newer attempt has begun to save."""
    own = max((saved.step for saved in committed_checkpoints(directory) if saved.attempt == name.attempt), default=-1)
    if own >= name.step:
        raise NoCopy(f"step {own} is on the disk, and the newest in memory is step {name.step}")
    if (newest := highest_attempt(directory)) > name.attempt:
        raise NoCopy(f"attempt {newest} has begun to save there")


def write_bundle(folder: NewFolder, bundle: BundlePlace, content: memoryview) -> None:
    """Writes the files of a bundle as TensorFlow does; the index from what the description says."""
    data = folder.create(f"{bundle.prefix}.data-00000-of-00001")
    records = {b"": entry.HEADER}
    for tensor in bundle.tensors:
        crc, end = 0, tensor.offset + tensor.size
        for at in range(tensor.offset, end, PIECE_BYTES):
            piece = bytes(content[at : min(at + PIECE_BYTES, end)])  # what the checksum's library takes
            crc = crc32c.extend(crc, piece)
            data.write(piece, is_stable=True)
        crc = crc if tensor.crc is None else tensor.crc
        records[tensor.name.encode()] = entry.encode_tensor(
            tensor.dtype, tensor.shape, tensor.offset, tensor.size, sstable.mask(crc)
        )
    folder.add(f"{bundle.prefix}.index", sstable.encode_table(sorted(records.items())))
