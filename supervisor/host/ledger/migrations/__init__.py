"""How does a ledger of an earlier version become one of this version? One file for each step, in order.

A step is a function of a connection, run in a transaction together with the new version number: a crash leaves the
file as it was, or some whole steps further, and the next start goes on from there. Before the first step the whole file
is copied beside it (`ledger.sqlite3.v12`), so that the earlier version can be installed again; a start without room for
the copy changes nothing and says so.

A step is history: it writes SQL and JSON keys as text and imports nothing of this project, so that it does the same in
every later version, whatever becomes of the classes. It does not judge what is damaged: that is found where it is read.
To change the tables: raise `SCHEMA` in `schema.py`, change its tables, add a file here and a row below, and keep a
ledger that the version before wrote in `tests/host/ledger/versions`, for ever.
"""

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from supervisor.host.ledger.migrations import v13_progress, v14_names, v15_proofs, v16_diagnoses
from supervisor.protocol import durable

Step = Callable[[sqlite3.Connection], None]

STEPS: Mapping[int, Step] = {
    13: v13_progress.apply,
    14: v14_names.apply,
    15: v15_proofs.apply,
    16: v16_diagnoses.apply,
}
"""By the version that each leads to."""

OLDEST = min(STEPS) - 1
"""The earliest version that can be brought up to date."""


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """What is done in it is on the disk as a whole, or not at all. Raises sqlite3.Error."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def migrate(connection: sqlite3.Connection, path: Path, version: int) -> Path:
    """Brings the ledger `path` from `version` to the newest one; returns where a copy of it was kept.

    Raises sqlite3.Error and OSError; then the file is as it was, or some whole steps further.
    """
    copy = _keep_copy(connection, path, version)
    for target in range(version + 1, max(STEPS) + 1):
        with transaction(connection):
            STEPS[target](connection)
            connection.execute(f"PRAGMA user_version = {target}")
    return copy


def _keep_copy(connection: sqlite3.Connection, path: Path, version: int) -> Path:
    """Copies the ledger beside itself; one file, readable without its write-ahead log."""
    copy = path.with_name(f"{path.name}.v{version}")
    fresh = path.with_name(f".{copy.name}.new")
    try:
        _remove(fresh)  # an earlier start was killed while it made the copy
        fresh.touch(mode=0o600, exist_ok=False)
        with closing(sqlite3.connect(fresh, isolation_level=None)) as target:
            connection.backup(target)
            target.execute("PRAGMA journal_mode = DELETE")
        durable.sync_file(fresh)
        fresh.replace(copy)
    except BaseException:
        with suppress(OSError):
            _remove(fresh)  # on a full disk above all
        raise
    durable.sync_folder(path.parent)
    return copy


def _remove(fresh: Path) -> None:
    for suffix in ("", "-journal", "-wal", "-shm"):
        fresh.with_name(fresh.name + suffix).unlink(missing_ok=True)
