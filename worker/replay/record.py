"""`replayed.json` in the checkpoint directory: which checkpoints two trainings of the same steps agree on.

It lies beside the checkpoints and not in them: a committed folder never changes, its manifest was written, and perhaps
uploaded, before the steps behind it were trained again. It is no part of the daemon's ledger, because it belongs to the
directory: it is true on whatever host that is mounted, and without a daemon too.
"""

from collections.abc import Iterable
from pathlib import Path

from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints.replayed import MOST_NAMES, read_replayed, to_bytes


def record_replayed(directory: Path, names: Iterable[str]) -> None:
    """Adds checkpoints to the list, and takes out those that are no longer there. Raises OSError."""
    names = list(names)
    before = [name for name in read_replayed(directory) if (directory / name).is_dir() and name not in names]
    durable.write_file(directory / layout.REPLAYED, to_bytes([*before, *names][-MOST_NAMES:]))
