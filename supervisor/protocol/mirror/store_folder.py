"""Whether the folder of a `file://` mirror is there, on the disk that it belongs to.

Such a folder is never made: below a mount point without its disk it would be an empty store, and a run that is shown an
empty store begins at step 0. A mount point without its disk is itself an empty folder, so an empty one is not believed
either: at the first use of a store an operator makes the first run's folder in it. Once there is anything in it, runs
make their own. What the host's tables say of the folder, or of one above it, has to be mounted whatever lies there.
"""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from supervisor.protocol.mount_points import HOST, MountTables, missing_volume


def why_not_there(url: str, run: str = "", tables: MountTables = HOST) -> str | None:
    """Why the folder of a `file://` URL can't be used as a store, in words; None if it can, or if it is another URL.

    `run`: the folder in it of the run that is going to be written; empty: the URL leads to the run, which is read.
    """
    parts = urlsplit(url)
    if parts.scheme != "file":
        return None
    folder = Path(unquote(parts.path))
    remedy = f"mount its disk; if this store is used for the first time, make the folder {folder / run}"
    try:
        why = _why_not(folder, run, tables)
    except OSError as error:
        why = f"{folder}: {error.strerror}"
    return None if why is None else f"cannot use mirror {url}: {why}; {remedy}"


def _why_not(folder: Path, run: str, tables: MountTables) -> str | None:
    """Raises OSError."""
    if not folder.is_dir():  # this mounts what is mounted on demand
        return f"{folder} is not a folder" if folder.exists() else f"{folder} is not there"
    if (missing := missing_volume(folder, tables)) is not None:
        return str(missing)
    if run and next(folder.iterdir(), None) is None:
        return f"{folder} is empty, as a mount point without its disk is"
    return None
