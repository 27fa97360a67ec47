"""Measures what it costs to select the newest whole checkpoint in a process of the job's user, beside in the daemon.

Run as root with `python -m bench.selections` (a minute); prints a table and writes bench/results/selections.json. A
root daemon reads the checkpoint directory of a job with `user =` in a process of that user, started for each question;
that of a job without, in a thread. Both ask the same question about the same directory, in turns. The daemon asks it
at each start of a job, when it has just started the worker.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import harness
from supervisor.host.checkpoint_store import CheckpointStore, other_identity
from supervisor.protocol import layout
from supervisor.protocol.checkpoints import manifest
from supervisor.protocol.layout import CheckpointName

USER = "nobody"
COUNTS = (0, 10, 100)
CHECKPOINT_BYTES = 1_000_000


def make(directory: Path, count: int) -> None:
    """Commits `count` checkpoints that the user owns."""
    identity = other_identity(USER)
    assert identity is not None
    directory.mkdir()
    for step in range(1, count + 1):
        folder = directory / str(CheckpointName(step, 1))
        folder.mkdir()
        (folder / "state").write_bytes(os.urandom(CHECKPOINT_BYTES))
        files = manifest.record_files(folder, ("state",))
        content = manifest.Manifest("job", 1, step, 0.0, files).to_bytes()
        (folder / layout.MANIFEST).write_bytes(content)
    for path in (directory, *directory.rglob("*")):
        os.chown(path, identity.uid, identity.gid)


async def measured(directory: Path, turns: int) -> dict[str, list[float]]:
    """Seconds of each selection, by who made it."""
    store = CheckpointStore()
    seconds: dict[str, list[float]] = {"daemon": [], "user": []}
    for turn in range(turns + 1):
        for who, user in (("daemon", None), ("user", USER)):
            began_at = time.perf_counter()
            await store.select(directory, user=user)
            if turn:  # the first finds the modules and the bytes on the disk
                seconds[who].append(time.perf_counter() - began_at)
    return seconds


def spread(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=20)
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("cannot measure: only root becomes another user; run it as root")
    harness.compiled()
    results = {}
    table = Table("checkpoints", "in the daemon, ms", "as the user, ms", "ratio")
    with tempfile.TemporaryDirectory(prefix="selections-") as folder:
        os.chmod(folder, 0o755)
        for count in COUNTS:
            make(Path(folder, str(count)), count)
            seconds = asyncio.run(measured(Path(folder, str(count)), options.turns))
            results[count] = seconds
            ratios = [user / daemon for daemon, user in zip(seconds["daemon"], seconds["user"], strict=True)]
            times = [spread([1000 * value for value in seconds[who]], 1) for who in ("daemon", "user")]
            table.add_row(str(count), *times, spread(ratios, 0))
    Console(width=120).print(f"{options.turns} turns; median, minimum and maximum", table)
    print(harness.write("selections", {"bytes": CHECKPOINT_BYTES, "seconds": results}))


if __name__ == "__main__":
    main()
