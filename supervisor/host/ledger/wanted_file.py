"""What the operator wants, and how far each job has come, in a small file beside the ledger: it survives a ledger that
is lost, damaged or locked.

The file is written before the ledger is, in the ledger's thread. If it can't be written it is removed, and if that
fails too, nothing is written into the ledger. So the file, where there is one, is never older than the ledger, and the
next daemon believes it. Format 2 added `progress`.
"""

import contextlib
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from supervisor.host.ledger.schema import LedgerError, set_aside
from supervisor.protocol import durable
from supervisor.protocol.checkpoints.account import ProgressAccount
from supervisor.protocol.formats import NewerFormat, check_format
from supervisor.protocol.wire.codec import ProtocolError, decode_record, decode_stored, parse_object, to_plain

FILE = "wanted.json"
FORMAT = 2
MAX_BYTES = 1 << 24  # a hundred thousand programs

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Wanted:
    """Whether each program that was ever started or stopped is to run, and the programs that were removed.

    `progress`: by job, its account of progress; it outlives the section in the configuration. Names are those in the
    file.
    """

    programs: Mapping[str, bool] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()
    progress: Mapping[str, ProgressAccount] = field(default_factory=dict)
    format: int = FORMAT


class WantedFile:
    """The content of the file, which any thread may change, and one thread writes. `known`: what the ledger has.

    `wanted`: what an earlier daemon left in the file. If there is any, it counts instead of `known`; of an account of
    progress the later of the two counts.
    """

    def __init__(self, path: Path, known: Wanted, wanted: Wanted | None) -> None:
        self._path = path
        self.was_there = wanted is not None
        self._programs = dict((wanted or known).programs)
        self._removed = set((wanted or known).removed)
        self._progress = dict(known.progress)
        for program, account in wanted.progress.items() if wanted is not None else ():
            if program not in self._progress or account.revision >= self._progress[program].revision:
                self._progress[program] = account
        self._lock = threading.Lock()
        self._changes = 0 if self.was_there else 1
        self._written = 0

    @property
    def changes(self) -> int:
        """How many changes there were so far."""
        return self._changes

    def has_written(self, changes: int) -> bool:
        """Whether the first so many changes are on the disk."""
        return self._written >= changes

    @property
    def content(self) -> Wanted:
        """What is wanted now."""
        with self._lock:
            return self._content()

    def progress_of(self, program: str) -> ProgressAccount:
        """How far a job has come."""
        with self._lock:
            return self._progress.get(program, ProgressAccount())

    def is_wanted(self, program: str, default: bool = False) -> bool:
        """Whether the program is to run; `default` if it was never started or stopped."""
        with self._lock:
            return self._programs.get(program, default)

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
        """Writes the changes, if there are any; whether they are on the disk now.

        Raises OSError if they are not, and what is there instead can't be removed.
        """
        with self._lock:
            changes = self._changes
            text = json.dumps(to_plain(self._content()), indent=1, sort_keys=True, allow_nan=False)
        if changes == self._written:
            return True
        try:
            durable.write_file(self._path, text.encode("utf-8", "replace") + b"\n", mode=0o600)
        except OSError:
            self._path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                durable.sync_folder(self._path.parent)
            return False
        self._written = changes
        return True

    def _content(self) -> Wanted:
        return Wanted(dict(self._programs), frozenset(self._removed), dict(self._progress))


def read_wanted(path: Path) -> Wanted | None:
    """The file's content; None if there is none, or it is damaged, and then it is set aside. What of it is damaged
    costs that part.

    Raises LedgerError if a newer version wrote it.
    """
    check_wanted_format(path)
    try:
        wanted, damaged = _decode(path)
    except OSError:
        return None
    except ValueError as error:
        moved_to = None
        with contextlib.suppress(OSError):
            moved_to = str(set_aside(path))
        log.error("wanted.set_aside", error=str(error), moved_to=moved_to, effect="the ledger's content counts")
        return None
    if damaged:
        log.error("wanted.damaged", path=str(path), damaged=damaged, effect="for these the ledger's content counts")
    return wanted


def peek_wanted(path: Path) -> Wanted | None:
    """As `read_wanted`, for somebody who is not the daemon: changes nothing, and what can't be read is None."""
    try:
        return _decode(path)[0]
    except (OSError, ValueError):
        return None


def _decode(path: Path) -> tuple[Wanted, tuple[str, ...]]:
    """The content, and which parts of it are damaged. Raises OSError, and ValueError if it is no such file."""
    body = parse_object(durable.read_file(path, MAX_BYTES))
    check_format(body, FORMAT, FILE)
    wanted, damaged = decode_stored(body, Wanted, FILE)
    if not (isinstance(body.get("programs"), dict) and isinstance(body.get("removed"), list)):
        raise ProtocolError(f"{FILE} lacks programs or removed")
    return wanted, damaged


def check_wanted_format(path: Path) -> None:
    """Raises LedgerError if a newer version wrote the file. Changes nothing."""
    try:
        check_format(parse_object(durable.read_file(path, MAX_BYTES)), FORMAT, str(path))
    except NewerFormat as error:
        raise LedgerError(
            f"cannot use what is wanted: {error}, or move the file away; then the ledger's content counts"
        ) from error
    except (OSError, ValueError):
        return  # there is none, or it is damaged


def account_in(content: str) -> ProgressAccount | None:
    """One job's account, from JSON text; None if it is damaged, which says nothing about others."""
    try:
        return decode_record(parse_object(content), ProgressAccount, "progress")
    except ProtocolError:
        return None
