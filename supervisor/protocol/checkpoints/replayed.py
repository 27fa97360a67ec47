"""`replayed.json`: the checkpoints of a directory that two trainings of the same steps agree on (docs/replay.md).

It lies beside the checkpoints and not in them: a committed folder never changes, its manifest was written, and perhaps
uploaded, before the steps behind it were trained again. It is no part of the daemon's ledger, because it belongs to the
directory: it is true on whatever host that is mounted, and without a daemon too.
"""

import contextlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from supervisor.protocol import durable, layout
from supervisor.protocol.formats import NewerFormat, check_format, refuse_newer

FORMAT = 1
MOST_NAMES = 1000  # more than any directory holds; the file stays small
_MAX_BYTES = 1 << 20


def to_bytes(names: Sequence[str]) -> bytes:
    """The file's content."""
    return (json.dumps({"format": FORMAT, "checkpoints": list(names)}, allow_nan=False) + "\n").encode()


def read_replayed(directory: Path) -> tuple[str, ...]:
    """The names of these checkpoints; none if the file is missing, or is not one that this version can read.

    Nothing depends on it: it is shown, and that is all.
    """
    try:
        body = json.loads(durable.read_file(directory / layout.REPLAYED, _MAX_BYTES))
        check_format(body, FORMAT, layout.REPLAYED)
        names = body["checkpoints"]
    except (OSError, ValueError, KeyError, TypeError, NewerFormat, RecursionError):
        return ()
    if not isinstance(names, list):
        return ()
    return tuple(name for name in names[:MOST_NAMES] if isinstance(name, str) and layout.parse_name(name) is not None)


def add_replayed(directory: Path, names: Iterable[str]) -> None:
    """Adds checkpoints, and forgets those that are gone. Raises OSError; NewerFormat if a later version's is there."""
    names = list(names)
    with contextlib.suppress(FileNotFoundError):
        refuse_newer(durable.read_file(directory / layout.REPLAYED, _MAX_BYTES), FORMAT, layout.REPLAYED)
    before = [name for name in read_replayed(directory) if (directory / name).is_dir() and name not in names]
    durable.write_file(directory / layout.REPLAYED, to_bytes([*before, *names][-MOST_NAMES:]))
