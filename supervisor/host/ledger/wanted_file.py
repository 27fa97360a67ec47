"""What the operator wants, in a small file beside the ledger: it survives a ledger that is lost, damaged or locked.

The file is written before the ledger is, in the ledger's thread. If it can't be written it is removed, so that the
file, where there is one, is never older than the ledger, and the next daemon believes it.
"""

import contextlib
import json
import threading
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.protocol import durable

FILE = "wanted.json"
MAX_BYTES = 1 << 24  # a hundred thousand programs


@dataclass(frozen=True, slots=True)
class Wanted:
    """Whether each program that was ever started or stopped is to run, and the programs that were removed."""

    programs: dict[str, bool] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()


class WantedFile:
    """The content of the file, which any thread may change, and one thread writes. `known`: what the ledger has.

    `was_there`: whether an earlier daemon left the file. Then its content counts instead of `known`.
    """

    def __init__(self, path: Path, known: Wanted) -> None:
        self._path = path
        found = _read(path)
        self.was_there = found is not None
        self._programs = dict((found or known).programs)
        self._removed = set((found or known).removed)
        self._lock = threading.Lock()
        self._changes = 0 if self.was_there else 1
        self._written = 0

    @property
    def is_written(self) -> bool:
        """Whether all changes so far are on the disk."""
        return self._written == self._changes

    @property
    def content(self) -> Wanted:
        """What is wanted now."""
        with self._lock:
            return Wanted(dict(self._programs), frozenset(self._removed))

    def set_wanted(self, program: str, wanted: bool | None) -> None:
        """Changes whether the program is to run. None: nothing is known of it any more."""
        with self._lock:
            self._changes += 1
            self._programs.pop(program, None)
            if wanted is not None:
                self._programs[program] = wanted

    def set_removed(self, program: str, is_removed: bool) -> None:
        """Changes whether the program is removed."""
        with self._lock:
            self._changes += 1
            (self._removed.add if is_removed else self._removed.discard)(program)

    def write(self) -> bool:
        """Writes the changes, if there are any; whether they are on the disk now. Never raises."""
        with self._lock:
            changes = self._changes
            content = {"programs": self._programs, "removed": sorted(self._removed)}
            text = json.dumps(content, indent=1, sort_keys=True, allow_nan=False)
        if changes == self._written:
            return True
        try:
            durable.write_file(self._path, text.encode("utf-8", "replace") + b"\n", mode=0o600)
        except OSError:
            with contextlib.suppress(OSError):
                self._path.unlink()
                durable.sync_folder(self._path.parent)
            return False
        self._written = changes
        return True


def _read(path: Path) -> Wanted | None:
    """The file's content; None if there is none, or it is damaged."""
    try:
        found = json.loads(durable.read_file(path, MAX_BYTES).decode())
        programs = {str(name): wanted for name, wanted in found["programs"].items() if isinstance(wanted, bool)}
        return Wanted(programs, frozenset(str(name) for name in found["removed"]))
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None
