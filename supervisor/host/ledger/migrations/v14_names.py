"""14: names that say what they are, and what failures taught in the form of the wire's codec.

Until 13 the table `memories` had facts and counters in one JSON object, with lists where there are objects now.
"""

import json
import sqlite3

_NAMES = {
    "idle_deaths": "deaths_without_progress",
    "ever_moved": "ever_trained",
    "before": "restore_below_step",
    "waits": "in_backoff",
    "waits_s": "backoff_left_s",
    "restoring": "from_checkpoint",
    "saved": "saved_step",
    "began_at": "start_step",
    "moved": "made_progress",
}
_DEATH = ("name", "from_step", "step", "restored", "place")
_COUNTER = ("file", "where", "count")


def apply(connection: sqlite3.Connection) -> None:
    """Raises sqlite3.Error."""
    connection.execute("ALTER TABLE out_of_use RENAME TO removed_programs")
    connection.execute("ALTER TABLE silences RENAME TO longest_silences")
    connection.execute("ALTER TABLE attempts RENAME COLUMN split TO microbatches")
    connection.execute(
        "CREATE TABLE job_states (program TEXT PRIMARY KEY, facts TEXT NOT NULL, oom_counters TEXT NOT NULL,"
        " digest TEXT NOT NULL, stored_awake_s REAL NOT NULL, boot_id TEXT) WITHOUT ROWID"
    )
    rows = connection.execute("SELECT program, content, digest, kept_awake_s, boot_id FROM memories").fetchall()
    for program, content, *others in rows:
        try:
            memory = json.loads(content)
            counters = _objects(memory.pop("counters", []), _COUNTER)
            memory["deaths"] = _objects(memory.get("deaths", []), _DEATH)
            facts = {_NAMES.get(name, name): value for name, value in memory.items() if value is not None}
            encoded = (json.dumps(facts, allow_nan=False), json.dumps({"counters": counters}, allow_nan=False))
        except (ValueError, TypeError, AttributeError, RecursionError):
            continue  # damaged: nothing of it would be read
        values = (program, *encoded, *others)
        connection.execute("INSERT INTO job_states VALUES (?, ?, ?, ?, ?, ?)", values)
    connection.execute("DROP TABLE memories")


def _objects(rows: list[list[object]], names: tuple[str, ...]) -> list[dict[str, object]]:
    return [dict(zip(names, row, strict=True)) for row in rows]
