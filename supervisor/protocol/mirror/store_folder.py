"""Whether the folder of a `file://` mirror is there, on the disk that it belongs to.

Such a folder is never made: below a mount point without its disk it would be an empty store, and a run that is shown an
empty store begins at step 0. That the folder exists proves nothing where it is the mount point itself, so what
/etc/fstab says of it, or of a folder above it, has to be mounted too.
"""

import contextlib
from pathlib import Path
from urllib.parse import unquote, urlsplit

from supervisor.protocol.mounts import MOUNTINFO, parse_mountinfo, unescape

FSTAB = Path("/etc/fstab")
REMEDY = "mount its disk; if this store is used for the first time, make the folder"


def why_not_there(url: str) -> str | None:
    """Why the folder of a `file://` URL can't be used as a store, in words; None if it can, or if it is another URL."""
    parts = urlsplit(url)
    if parts.scheme != "file":
        return None
    folder = Path(unquote(parts.path))
    try:
        is_folder = folder.is_dir()  # this mounts what is mounted on demand
    except OSError as error:
        return f"cannot use mirror {url}: {folder}: {error.strerror}; {REMEDY}"
    if not is_folder:
        why = "is not a folder" if folder.exists() else "is not there"
        return f"cannot use mirror {url}: {folder} {why}; {REMEDY}"
    if (point := _missing_mount(folder)) is not None:
        return f"cannot use mirror {url}: {point} is not mounted, and {FSTAB} says that it is a mount point; {REMEDY}"
    return None


def _missing_mount(folder: Path) -> Path | None:
    """The mount point of a folder in /etc/fstab on which nothing is mounted; None if all is as it says there."""
    above = {folder.resolve(), *folder.resolve().parents}
    wanted = {point for point in _fstab_points() if point in above and point != Path("/")}
    if not wanted:
        return None
    with contextlib.suppress(OSError):
        mounts = parse_mountinfo(MOUNTINFO.read_text(errors="surrogateescape"))
        return max(wanted - {Path(mount.point) for mount in mounts.values()}, default=None)
    return None


def _fstab_points() -> set[Path]:
    try:
        lines = FSTAB.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return set()
    fields = (line.split() for line in lines if not line.lstrip().startswith("#"))
    return {Path(unescape(field[1])) for field in fields if len(field) >= 3 and field[1].startswith("/")}
