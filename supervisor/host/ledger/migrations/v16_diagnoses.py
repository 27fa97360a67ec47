"""16: attempts say why they died: the diagnosis, as JSON of the wire's codec."""

import sqlite3


def apply(connection: sqlite3.Connection) -> None:
    """Raises sqlite3.Error."""
    connection.execute("ALTER TABLE attempts ADD COLUMN diagnosis TEXT")
