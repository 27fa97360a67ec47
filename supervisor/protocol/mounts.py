"""Which file system a folder is on, and what checkpoints can't rely on there. Reads /proc/self/mountinfo.

Saving relies on three things: a lock (`flock`) that keeps a second worker out, a rename of a folder that happens at
once or not at all, and an fsync after which the bytes outlive a power cut. Disks and most network file systems give all
three. `REMARKS` lists those that do not, each with the reason and with what to use instead.
"""

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")
MAX_TEXT = 200  # characters of a mount point that a message repeats


@dataclass(frozen=True, slots=True)
class Mount:
    """One mounted file system: type as the kernel calls it (`ext4`, `fuse.s3fs`), where, and its options."""

    type: str
    point: str
    options: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.type[:MAX_TEXT]} at {self.point[:MAX_TEXT]}"


@dataclass(frozen=True, slots=True)
class Remark:
    """What checkpoints can't rely on in a file system (`lacks`), and what to do instead. `unless`: a mount option with
    which it does hold; `only_with`: options of which one has to be set for this to apply."""

    lacks: str
    instead: str
    unless: str | None = None
    only_with: frozenset[str] = frozenset()


_OBJECT_STORE = "keep checkpoint_dir on a disk or NFS, and copy checkpoints to the object store from there"
_NO_RENAME = (
    "it keeps objects, not files: renaming a checkpoint's folder copies file after file, so a crash can leave half of "
    "one, and its locks do not keep a worker on another host out"
)

REMARKS: Mapping[str, tuple[Remark, ...]] = {
    # object stores: a rename is a copy of each object, locks are local to the process, a close may fail late
    "fuse.s3fs": (Remark(_NO_RENAME, _OBJECT_STORE),),
    "fuse.goofys": (Remark(_NO_RENAME, _OBJECT_STORE),),
    "fuse.mountpoint-s3": (Remark("folders and files can't be renamed, so no save can commit", _OBJECT_STORE),),
    "fuse.gcsfuse": (Remark(_NO_RENAME, _OBJECT_STORE),),  # folders are renamed at once in hierarchical buckets only
    "fuse.blobfuse": (Remark(_NO_RENAME, _OBJECT_STORE),),
    "fuse.blobfuse2": (Remark(_NO_RENAME, _OBJECT_STORE),),
    "fuse.ossfs": (Remark(_NO_RENAME, _OBJECT_STORE),),
    "fuse.cosfs": (Remark(_NO_RENAME, _OBJECT_STORE),),
    "fuse.obsfs": (Remark(_NO_RENAME, _OBJECT_STORE),),
    "fuse.rclone": (
        Remark(f"{_NO_RENAME}; what it caches is uploaded after fsync has returned", _OBJECT_STORE),  # --vfs-cache-mode
    ),
    # remote files without shared locks
    "fuse.sshfs": (
        Remark("locks are local, so a worker on another host is not kept out", "use NFS, or one host only"),
    ),
    "fuse.davfs": (Remark("files are uploaded after fsync has returned, and locks are local", "use a disk or NFS"),),
    "9p": (
        Remark(
            "locks and fsync depend on how the host shares the folder: often neither goes further than this machine",
            "use virtiofs, NFS or a disk of the machine, or run one worker only",
            unless="cache=none",
        ),
    ),
    "virtiofs": (
        Remark(
            "locks hold inside this machine only unless the host's virtiofsd passes them on",
            "let one machine only use the folder",
        ),
    ),
    "vboxsf": (Remark("locks are local, and fsync is not passed on to the host's disk", "use a disk of the machine"),),
    # network file systems whose locks are switched off
    "nfs": (
        Remark(
            "its locks are local to this host (nolock or local_lock), so a worker on another host is not kept out",
            "mount it without nolock and local_lock",
            only_with=frozenset({"nolock", "local_lock=all", "local_lock=flock"}),
        ),
        Remark(
            "reads and writes fail when the server does not answer for a while (soft)",
            "mount it hard, so that they wait for the server",
            only_with=frozenset({"soft", "softerr"}),
        ),
    ),
    "lustre": (
        Remark(
            "its locks are local to this host (localflock)",
            "mount it with flock",
            only_with=frozenset({"localflock"}),
        ),
        Remark(
            "it has no locks, so no worker can hold the folder (noflock)",
            "mount it with flock",
            only_with=frozenset({"noflock"}),
        ),
    ),
    "cifs": (
        Remark(
            "its locks are not passed on to the server (nobrl), so a worker on another host is not kept out",
            "mount it without nobrl",
            only_with=frozenset({"nobrl"}),
        ),
    ),
    # not durable
    "overlay": (
        Remark("it is usually a container's own layer, and goes away with the container", "mount a volume there"),
    ),
    "aufs": (Remark("it is usually a container's own layer, and goes away with it", "mount a volume there"),),
    "tmpfs": (Remark("it is in memory: a reboot or a power cut takes all checkpoints", "use a disk"),),
    "ramfs": (Remark("it is in memory: a reboot or a power cut takes all checkpoints", "use a disk"),),
}
"""By type. A type that is not here is known to give all three, or is judged by `_UNKNOWN_FUSE`."""

_ALIASES: Mapping[str, str] = {"nfs4": "nfs", "smb3": "cifs", "fuse.mount-s3": "fuse.mountpoint-s3"}

SOUND_FUSE = frozenset(
    {
        "fuse.juicefs",  # POSIX with locks over its metadata engine
        "fuse.glusterfs",
        "fuse.ceph",
        "fuse.ceph-fuse",
        "fuse.lizardfs",
        "fuse.moosefs",
        "fuse.mfs",
        "fuse.seaweedfs",
        "fuse.beegfs",
        "fuse.ntfs-3g",  # a local disk
        "fuse.exfat",
        "fuse.fuse-overlayfs",  # judged by what is below it; containers without root use it
        "fuse.bindfs",
        "fuse.lxcfs",
        "fuseblk",  # a block device: a local disk
    }
)

_UNKNOWN_FUSE = Remark(
    "nothing is known of this program's locks, renames and fsync",
    "test it: start the job twice on two hosts, and see that the second one is refused; else use a disk or NFS",
)


def parse_mountinfo(text: str) -> dict[int, Mount]:
    """The mounts in /proc/PID/mountinfo by mount id; lines that are none are left out."""
    mounts: dict[int, Mount] = {}
    for line in text.splitlines():
        own, _, rest = line.partition(" - ")
        fields, more = own.split(" "), rest.split(" ")
        if len(fields) < 6 or len(more) < 3 or not fields[0].isdecimal():
            continue
        options = {*fields[5].split(","), *more[2].split(",")}
        mounts[int(fields[0])] = Mount(more[0], unescape(fields[4]), frozenset(options))
    return mounts


def unescape(text: str) -> str:
    """A path as it is; the kernel and /etc/fstab write space, tab, newline and backslash as octal numbers."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def mount_of(folder: Path) -> Mount | None:
    """The file system that the folder is on, or would be created on; None if the kernel does not tell.

    Raises OSError if the folder can't be reached. Asks the kernel for the mount behind an open descriptor, so links and
    mounts above one another are seen as a worker would see them.
    """
    descriptor = _open_nearest(folder)
    try:
        with contextlib.suppress(OSError, ValueError):  # no /proc, or an old kernel
            lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
            number = next((int(line.split()[1]) for line in lines if line.startswith("mnt_id:")), None)
            mounts = MOUNTINFO.read_text(errors="surrogateescape").splitlines()
            line = next((line for line in mounts if line.startswith(f"{number} ")), "")
            return next(iter(parse_mountinfo(line).values()), None)
    finally:
        os.close(descriptor)
    return None


def device_of(folder: Path) -> int:
    """The number of the device that the folder is on, or would be created on. Raises OSError."""
    descriptor = _open_nearest(folder)
    try:
        return os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)


def _open_nearest(folder: Path) -> int:
    """A descriptor of the folder, or of the nearest one above it that exists."""
    for parent in (folder, *folder.parents):
        with contextlib.suppress(FileNotFoundError):
            return os.open(parent, os.O_PATH | os.O_CLOEXEC)
    return os.open("/", os.O_PATH | os.O_CLOEXEC)


def remarks_on(mount: Mount) -> list[str]:
    """What checkpoints can't rely on in this file system, in sentences; nothing if it is fit for them."""
    kind = _ALIASES.get(mount.type, mount.type)
    known = REMARKS.get(kind, ())
    if not known and (kind == "fuse" or kind.startswith("fuse.")) and kind not in SOUND_FUSE:
        known = (_UNKNOWN_FUSE,)
    return [
        f"{mount}: {remark.lacks}; {remark.instead}"
        for remark in known
        if remark.unless not in mount.options and (not remark.only_with or remark.only_with & mount.options)
    ]
