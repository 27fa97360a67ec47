"""Whether a user gets to a folder of the daemon's: root makes it, and does not notice what keeps others out."""

import contextlib
import os
import stat
from pathlib import Path

from supervisor.host.children import Identity

_ACL = "system.posix_acl_access"  # acl(5): may let in whom the mode keeps out, so the mode says nothing


def explain_closed_folder(folder: Path, user: str, who: Identity) -> str | None:
    """What keeps a user from entering a folder, with the remedy; None if nothing does.

    Only folders that exist count: the daemon makes the others so that everybody can pass.
    """
    if (closed := find_closed(folder, who)) is None:
        return None
    remedy = "or set runtime_dir in [supervisord] to a folder that it may enter, such as /run/stepkeeper"
    return f"{user} may not enter {closed}; run chmod o+x {closed}, {remedy}"


def find_closed(path: Path, who: Identity) -> Path | None:
    """The first folder on the way to a folder or command that its user may not enter, or itself, if that may not be
    executed; None if nothing is closed."""
    if who.uid == 0:
        return None
    return next((parent for parent in reversed([path, *path.parents]) if _is_closed(parent, who)), None)


def _is_closed(folder: Path, who: Identity) -> bool:
    try:
        status = folder.stat()
    except OSError:  # there is none yet
        return False
    with contextlib.suppress(OSError):  # a file system without such attributes
        if _ACL in os.listxattr(folder):
            return False
    if status.st_uid == who.uid:
        needed = stat.S_IXUSR
    elif status.st_gid in (who.gid, *who.groups):
        needed = stat.S_IXGRP
    else:
        needed = stat.S_IXOTH
    return not status.st_mode & needed
