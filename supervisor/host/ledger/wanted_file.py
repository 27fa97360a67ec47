"""What the operator wants, and how far each job has come, in a small file beside the ledger: it survives a ledger that
is lost, damaged or locked.

The file is written before the ledger is, in the ledger's thread. If it can't be written it is removed, so that the
file, where there is one, is never older than the ledger, and the next daemon believes it.
"""

import contextlib
import json
import threading
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.protocol import durable
from supervisor.protocol.checkpoints.account import ProgressAccount
from supervisor.protocol.wire.codec import ProtocolError, decode_record, encode_record, parse_object

FILE = "wanted.json"
MAX_BYTES = 1 << 24  # a hundred thousand programs


@dataclass(frozen=True, slots=True)
class Wanted:
    """Whether each program that was ever started or stopped is to run, and the programs that were removed.

    `progress`: by job, its account of progress; it outlives the section in the configuration.
    """

    programs: dict[str, bool] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()
    progress: dict[str, ProgressAccount] = field(default_factory=dict)


class WantedFile:
    """The content of the file, which any thread may change, and one thread writes. `known`: what the ledger has.

    `was_there`: whether an earlier daemon left the file. Then its content counts instead of `known`; of an account of
    progress the later of the two counts.
    """

    def __init__(self, path: Path, known: Wanted) -> None:
        self._path = path
        found = read_wanted(path)
        self.was_there = found is not None
        self._programs = dict((found or known).programs)
        self._removed = set((found or known).removed)
        self._progress = dict(known.progress)
        for program, account in found.progress.items() if found is not None else ():
            if program not in self._progress or account.revision >= self._progress[program].revision:
                self._progress[program] = account
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
            return Wanted(dict(self._programs), frozenset(self._removed), dict(self._progress))

    def progress_of(self, program: str) -> ProgressAccount:
        """How far a job has come."""
        with self._lock:
            return self._progress.get(program, ProgressAccount())

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

    def set_progress(self, program: str, account: ProgressAccount) -> None:
        """Changes how far a job has come."""
        with self._lock:
            self._changes += 1
            self._progress[program] = account

    def write(self) -> bool:
        """Writes the changes, if there are any; whether they are on the disk now. Never raises."""
        with self._lock:
            changes = self._changes
            progress = {program: json.loads(encode_record(account)) for program, account in self._progress.items()}
            content = {"programs": self._programs, "removed": sorted(self._removed), "progress": progress}
            text = json.dumps(content, indent=1, sort_keys=True)
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


def read_wanted(path: Path) -> Wanted | None:
    """The file's content; None if there is none, or it can't be read or is damaged."""
    try:
        found = json.loads(durable.read_file(path, MAX_BYTES).decode())
        programs = {str(name): wanted for name, wanted in found["programs"].items() if isinstance(wanted, bool)}
        progress = {str(name): account_in(account) for name, account in found.get("progress", {}).items()}
        known = {name: account for name, account in progress.items() if account is not None}
        return Wanted(programs, frozenset(str(name) for name in found["removed"]), known)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


def account_in(content: object) -> ProgressAccount | None:
    """One job's account, as JSON text or as read from it; None if it is damaged, which says nothing about others."""
    try:
        body = parse_object(content) if isinstance(content, str) else content
        return decode_record(body, ProgressAccount, "progress") if isinstance(body, dict) else None
    except ProtocolError:
        return None
