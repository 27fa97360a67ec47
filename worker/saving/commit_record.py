"""What a worker without a daemon remembers of its checkpoint directory, to tell a lost disk from a first start.

Under a daemon the ledger knows. Without one, a record in the user's own state folder does:
`$XDG_STATE_HOME/stepkeeper/HASH.json` (by default below `~/.local/state`), one small file for each directory and host.
It can't lie in the directory, or beside it: an unmounted disk would take it along. It is named after the directory's
path and this host, as another host may have another disk there. It is a help and no more: where it can't be
written, or there is no home, nothing is remembered and nothing fails.
"""

import contextlib
import hashlib
import json
import os
import socket
from pathlib import Path

from supervisor.protocol import durable
from supervisor.protocol.checkpoints.account import ReportedCheckpoint
from supervisor.protocol.formats import KEY, NewerFormat, refuse_newer

FOLDER = "stepkeeper"
FORMAT = 1
MAX_RECORD_BYTES = 64 * 1024
MAX_RECORDS = 1000  # a program that makes a new directory for each run must not fill the home; none goes for its age


class CommitRecord:
    """The record of one directory."""

    def __init__(self, state_home: Path, directory: Path) -> None:
        self.mount: str | None = None
        """The file system that the directory is on now, in words."""
        self._directory = str(directory.absolute())
        place = hashlib.sha256(f"{socket.gethostname()}\0{self._directory}".encode(errors="surrogateescape"))
        self.path = state_home / FOLDER / f"{place.hexdigest()[:32]}.json"
        """Deleting it makes the next start a first one."""

    def load(self) -> ReportedCheckpoint | None:
        """The checkpoint that was remembered last; None if there is none, or the file is not readable."""
        try:
            record = json.loads(durable.read_file(self.path, MAX_RECORD_BYTES))
            name, step, mount = record["name"], record["step"], record["mount"]
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return None
        if not (isinstance(name, str) and type(step) is int and isinstance(mount, str | None)):
            return None
        return ReportedCheckpoint(step, name, self._directory, mount)

    def remember(self, name: str, step: int) -> None:
        """Remembers a checkpoint. Not synced: after a power cut an older record, or none, does no harm.

        A record of a later version stays as it is.
        """
        if self._is_newer():
            return
        content = {KEY: FORMAT, "directory": self._directory, "name": name, "step": step, "mount": self.mount}
        temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        with contextlib.suppress(OSError, UnicodeEncodeError):
            if not self.path.exists():
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                _forget_old(self.path.parent)
            temporary.write_text(json.dumps(content) + "\n")
            temporary.replace(self.path)

    def _is_newer(self) -> bool:
        try:
            refuse_newer(durable.read_file(self.path, MAX_RECORD_BYTES), FORMAT, self.path.name)
        except NewerFormat:
            return True
        except OSError:
            return False  # there is none
        return False


def _forget_old(folder: Path) -> None:
    """Deletes the records beyond MAX_RECORDS, those that were written first."""
    aged = sorted((entry.stat().st_mtime, entry.path) for entry in os.scandir(folder) if entry.is_file())
    for _, path in aged[: max(0, len(aged) - MAX_RECORDS + 1)]:
        Path(path).unlink(missing_ok=True)
