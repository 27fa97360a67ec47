"""15: the newest proof of exactness of each job has a table, with what to clean up after one that is under way."""

import sqlite3


def apply(connection: sqlite3.Connection) -> None:
    """Raises sqlite3.Error."""
    connection.execute("CREATE TABLE proofs (program TEXT PRIMARY KEY, content TEXT, under_way TEXT) WITHOUT ROWID")
