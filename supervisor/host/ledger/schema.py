"""Opens the ledger's file: creates it, brings one of an earlier version up to date, refuses one that a newer version
wrote, and sets a damaged one aside."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import structlog

from supervisor.host.ledger.migrations import OLDEST, migrate
from supervisor.protocol import durable
from supervisor.protocol.layout import MAX_TRACED_ATTEMPT

SCHEMA = 16  # PRAGMA user_version in the file; raised with every change of the tables (`migrations/`)
INCREMENTAL = 2  # PRAGMA auto_vacuum: free pages can be given back to the disk piece by piece
WAL_KEPT_BYTES = 1 << 20  # of the journal's file, once its content is in the ledger; it grows while one reads for long
BUSY_S = 5.0  # readers never block the writer in WAL mode; only a person's own sqlite3 shell can

_TABLES = """
CREATE TABLE programs (program TEXT PRIMARY KEY, wanted INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE removed_programs (program TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE attempts (
    program TEXT NOT NULL, attempt INTEGER NOT NULL, pid INTEGER, start_time INTEGER, started_at REAL NOT NULL,
    restored TEXT, from_step INTEGER, to_step INTEGER,
    ended_at REAL, cause TEXT, text TEXT, exit_code INTEGER, signal INTEGER, boot_id TEXT,
    microbatches INTEGER, changed TEXT, ran_s REAL, checkpoints_pruned INTEGER NOT NULL DEFAULT 0,
    older_because TEXT, older_text TEXT, diagnosis TEXT,
    PRIMARY KEY (program, attempt)
) WITHOUT ROWID;
CREATE TABLE checkpoints (
    program TEXT NOT NULL, attempt INTEGER NOT NULL, name TEXT NOT NULL, step INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL, save_s REAL NOT NULL, stall_s REAL NOT NULL, committed_at REAL NOT NULL,
    PRIMARY KEY (program, attempt, name)
) WITHOUT ROWID;
CREATE TABLE refusals (
    program TEXT NOT NULL, attempt INTEGER NOT NULL, name TEXT NOT NULL, reason TEXT NOT NULL, refused_at REAL NOT NULL,
    PRIMARY KEY (program, attempt, name)
) WITHOUT ROWID;
CREATE TABLE longest_silences (
    program TEXT NOT NULL, section TEXT NOT NULL, longest_s REAL NOT NULL, PRIMARY KEY (program, section)
) WITHOUT ROWID;
CREATE TABLE accounts (
    program TEXT NOT NULL, attempt INTEGER NOT NULL, until_wall_at REAL NOT NULL, until_awake_s REAL NOT NULL,
    boot_id TEXT, open_as TEXT NOT NULL, step INTEGER, furthest INTEGER NOT NULL, owed_s REAL NOT NULL,
    spent_s TEXT NOT NULL,
    PRIMARY KEY (program, attempt)
) WITHOUT ROWID;
CREATE TABLE job_states (
    program TEXT PRIMARY KEY, facts TEXT NOT NULL, oom_counters TEXT NOT NULL, digest TEXT NOT NULL,
    stored_awake_s REAL NOT NULL, boot_id TEXT
) WITHOUT ROWID;
CREATE TABLE progress (program TEXT PRIMARY KEY, content TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE proofs (program TEXT PRIMARY KEY, content TEXT, under_way TEXT) WITHOUT ROWID;
CREATE TABLE series (program TEXT PRIMARY KEY, content TEXT NOT NULL);
CREATE TABLE output_begins (
    program TEXT NOT NULL, attempt INTEGER NOT NULL, channel TEXT NOT NULL,
    inode TEXT NOT NULL, offset INTEGER NOT NULL, digest INTEGER NOT NULL, at_ns INTEGER NOT NULL,
    PRIMARY KEY (program, attempt, channel)
) WITHOUT ROWID;
CREATE TABLE uploads (program TEXT NOT NULL, limited INTEGER NOT NULL, upload_s REAL NOT NULL);
"""

ATTEMPT_TABLES = ("attempts", "checkpoints", "refusals", "accounts", "output_begins")
"""The tables with rows of single attempts."""

log = structlog.get_logger()


class LedgerError(Exception):
    """The ledger can't be opened or read; the text says why and what to do."""


class _Damaged(Exception):
    """The file is not a whole ledger."""


def open_or_create(path: Path) -> tuple[sqlite3.Connection, Path | None]:
    """Returns a connection for writing, usable in any thread, and where a damaged ledger was moved to (else None).

    Raises LedgerError if another version wrote the file and this one can't use it, which then has not changed; or if it
    can't be opened, created, moved or brought up to date.
    """
    check_version(path)
    try:
        try:
            return _open(path), None
        except _Damaged:
            moved_to = set_aside(path)
            return _open(path), moved_to
    except (sqlite3.Error, OSError, _Damaged) as error:
        raise LedgerError(
            f"cannot open the ledger {path}: {error}; make sure that this user can write in {path.parent} and that its "
            f"disk has free space"
        ) from error


def check_version(path: Path) -> None:
    """Raises LedgerError if the ledger is of a version that this one can't use.

    It looks through a connection that can only read: one that can write would, when it is closed, move into the file
    what a daemon that was killed had left in the write-ahead log. Without such a log the file alone is read, as SQLite
    would make an empty one.
    """
    if not path.is_file() or path.stat().st_size == 0:
        return
    write_ahead = path.with_name(f"{path.name}-wal")
    how = "mode=ro" if write_ahead.exists() and write_ahead.stat().st_size > 0 else "immutable=1"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, timeout=BUSY_S)) as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
    except sqlite3.Error:
        return  # damaged, or locked: found out when it is opened for writing
    if version > SCHEMA:
        why = f"a newer stepkeeper wrote it (version {version}, this one reads {OLDEST} to {SCHEMA})"
        remedy = "install that version again, or set another state_dir"
    elif version == 0 or version >= OLDEST:
        return
    else:
        why = f"it has version {version}, and this stepkeeper reads {OLDEST} to {SCHEMA}"
        remedy = "install the version that wrote it, or move the file away: then the history begins anew"
    raise LedgerError(f"cannot use the ledger {path}: {why}; {remedy}; nothing was changed")


def remove_impossible_attempts(connection: sqlite3.Connection) -> int:
    """Deletes attempts whose number no attempt can have, as after damage or forgery; returns how many there were.

    The number of the next attempt follows from the highest, and has to fit the name of a checkpoint.
    Raises LedgerError.
    """
    try:
        (count,) = connection.execute(f"SELECT count(*) FROM attempts WHERE {_IMPOSSIBLE}").fetchone()  # noqa: S608
        if count:
            for table in ATTEMPT_TABLES:
                connection.execute(f"DELETE FROM {table} WHERE {_IMPOSSIBLE}")  # noqa: S608 - ours
    except sqlite3.Error as error:
        raise LedgerError(f"cannot repair the ledger: {error}; free space on its disk, then start again") from error
    return int(count)


_IMPOSSIBLE = f"typeof(attempt) <> 'integer' OR attempt < 1 OR attempt > {MAX_TRACED_ATTEMPT}"


def connect_reading(path: Path) -> sqlite3.Connection:
    """A connection for one reader, in its own thread. Raises sqlite3.Error."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=BUSY_S)
    connection.row_factory = sqlite3.Row
    connection.text_factory = _text
    return connection


@contextmanager
def decodable_errors() -> Iterator[None]:
    """Turns UnicodeDecodeError into sqlite3.DatabaseError: SQLite quotes the names in a damaged file as they are."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise sqlite3.DatabaseError("the file is damaged") from error


def is_damage(error: sqlite3.Error) -> bool:
    """Whether an error says that the file itself is bad."""
    return _primary_code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_transient(error: sqlite3.Error) -> bool:
    """Whether the same write may succeed later: disk full, I/O error, locked, read-only for now."""
    return _primary_code(error) in _TRANSIENT


_TRANSIENT = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
    }
)


def _primary_code(error: sqlite3.Error) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)  # absent on errors that Python itself raises
    return None if code is None else code & 0xFF


def _open(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # SQLite would apply the umask
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    connection.text_factory = _text
    try:
        with decodable_errors():
            _prepare(connection, path)
    except sqlite3.Error as error:
        connection.close()
        if is_transient(error) and getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_READONLY:
            raise
        raise _Damaged(str(error)) from error  # SQLite reports a damaged header in many ways, also as "read-only"
    except (LedgerError, _Damaged):
        connection.close()
        raise
    return connection


def _text(content: bytes) -> str:
    """Decodes text from the file, which need not be UTF-8 if it is damaged."""
    return content.decode("utf-8", "replace")


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (state,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if state != "ok":
        raise _Damaged(state)
    if version == 0:
        connection.execute(f"PRAGMA auto_vacuum = {INCREMENTAL}")  # before the first table; later only by VACUUM
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_KEPT_BYTES}")
    connection.execute("PRAGMA synchronous = FULL")  # few writes, in their own thread: worth a sync each
    if version == 0:
        connection.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {SCHEMA}; COMMIT;")
        return
    if version < SCHEMA:
        _bring_up_to_date(connection, path, version)
    try:
        for probe in _probes():
            connection.execute(probe)
    except sqlite3.OperationalError as error:
        if is_transient(error):
            raise
        raise _Damaged(str(error)) from error


def _probes() -> Iterator[str]:
    """Queries that fail where a table or a column of this version is missing."""
    with closing(sqlite3.connect(":memory:")) as model:
        model.executescript(_TABLES)
        for (table,) in model.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = [name for (name,) in model.execute("SELECT name FROM pragma_table_info(?)", (table,))]
            yield f"SELECT {', '.join(columns)} FROM {table} LIMIT 0"  # noqa: S608 - ours


def _bring_up_to_date(connection: sqlite3.Connection, path: Path, version: int) -> None:
    """Raises LedgerError, as a ledger that can't be brought up to date need not be damaged; and OSError."""
    try:
        copy = migrate(connection, path, version)
    except sqlite3.Error as error:
        if is_transient(error) or is_damage(error):
            raise
        raise LedgerError(
            f"cannot bring the ledger {path} from version {version} to {SCHEMA}: {error}; install the version before "
            f"again, or move the file away: then the history begins anew"
        ) from error
    log.warning("ledger.migrated", was=version, now=SCHEMA, copy=str(copy))


def copy_deleted(connection: sqlite3.Connection, path: Path) -> None:
    """Makes the file `path` again, with all that is in the connection to a file of that name that was deleted.

    What somebody else put in its place is moved aside. Closes the connection. Raises sqlite3.Error, OSError.
    """
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    os.close(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with closing(sqlite3.connect(fresh, isolation_level=None)) as copy:
        connection.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")  # one file alone
    connection.close()  # before the rename: it deletes files of these names beside it
    if path.exists():
        set_aside(path, "replaced")
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    fresh.rename(path)
    durable.sync_folder(path.parent)


def set_aside(path: Path, why: str = "corrupt") -> Path:
    """Renames the ledger, and what belongs to it; returns its new name. Raises OSError."""
    count = 1
    while (target := path.with_name(f"{path.name}.{why}-{count}")).exists():
        count += 1
    path.rename(target)
    for suffix in ("-wal", "-shm"):
        companion = path.with_name(path.name + suffix)
        if companion.exists():
            companion.rename(f"{target}{suffix}")
    return target
