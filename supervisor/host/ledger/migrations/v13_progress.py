"""13: the account of progress has a table of its own, and attempts say why they began from an older checkpoint.

Until 12 the newest checkpoint was kept among what failures taught (`memories`, key `known`: directory, name, step and
mount), and `from_scratch` was a word where 13 has the step that an operator chose.

The first revision is the time in seconds. `wanted.json` may hold accounts from before an earlier version was installed
again; what that one did since has to count as newer, and no job commits more than once a second for years.
"""

import json
import math
import re
import sqlite3
import time

_ATTEMPT = re.compile(r"\.a(\d+)$")


def apply(connection: sqlite3.Connection) -> None:
    """Raises sqlite3.Error."""
    connection.execute("CREATE TABLE progress (program TEXT PRIMARY KEY, content TEXT NOT NULL) WITHOUT ROWID")
    connection.execute("ALTER TABLE attempts ADD COLUMN older_because TEXT")
    connection.execute("ALTER TABLE attempts ADD COLUMN older_text TEXT")
    for program, content in connection.execute("SELECT program, content FROM memories").fetchall():
        try:
            memory = _loads(content)
            known = memory.pop("known", None)
            memory["begin_at"] = 0 if memory.pop("from_scratch", False) is True else None
        except (ValueError, TypeError, AttributeError, RecursionError):
            continue  # damaged: it is ignored where it is read, too
        connection.execute(
            "UPDATE memories SET content = ? WHERE program = ?", (json.dumps(memory, allow_nan=False), program)
        )
        if (account := _account_of(known)) is not None:
            connection.execute("INSERT INTO progress VALUES (?, ?)", (program, json.dumps(account, allow_nan=False)))


def _account_of(known: object) -> dict[str, object] | None:
    if not (isinstance(known, list) and len(known) == 4):
        return None
    directory, name, step, mount = known
    if not (isinstance(directory, str) and isinstance(name, str) and type(step) is int and step >= 0):
        return None
    newest: dict[str, object] = {"step": step, "name": name, "directory": directory}
    if isinstance(mount, str):
        newest["mount"] = mount
    if (attempt := _ATTEMPT.search(name)) is not None:
        newest["attempt"] = int(attempt[1])
    return {"newest": newest, "revision": int(time.time())}


def _loads(content: str) -> dict[str, object]:
    """JSON in which a number that is none, as earlier versions wrote them, counts as not known."""
    return dict(json.loads(content, parse_constant=lambda _: None, parse_float=_finite))


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None
