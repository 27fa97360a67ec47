"""Measures how long a standby waits for the state of a dead worker: restored from memory, or once that is on the disk.

Run with `python -m bench.memory_restores`; prints a table and writes bench/results/memory_restores.json. From memory:
the newest checkpoint on the disk is verified, the copy is proven, TensorFlow's index of it is made, then it is
restored. From the disk: the copy is proven, written and committed by a process of its own, verified and restored. The
two take turns. What `bench.memory_relaunch` measures with whole processes has the death, and the first step, in it too.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import harness

TABLES, WIDTH = 8, 64


def measured(size_mb: float, turns: int, folder: Path) -> dict[str, list[float]]:
    """Seconds of each turn."""
    import tensorflow as tf

    from supervisor.host.memory_tier.held_memory import HeldMemory
    from supervisor.host.memory_tier.salvage import SalvageRequest, salvage
    from supervisor.protocol.checkpoints.retention import RetentionPolicy
    from supervisor.protocol.checkpoints.selection import select_checkpoint
    from supervisor.protocol.memory_tier import layout
    from worker.checkpoint.restore import restore_checkpoint
    from worker.checkpoint.tensorflow_writer import StepBoundary, TensorFlowWriter
    from worker.saving.commit import CheckpointOrigin
    from worker.saving.memory_checkpoint import MemoryCheckpoint
    from worker.saving.memory_file import MemoryFile
    from worker.state.state_file import Position

    rows = int(size_mb * 1e6 / (4 * WIDTH * TABLES))
    tracked = tf.train.Checkpoint(tables=[tf.Variable(tf.fill([rows, WIDTH], float(n))) for n in range(TABLES)])
    origin = CheckpointOrigin("bench", 3, {}, {})
    writer = TensorFlowWriter(tracked, folder, origin, RetentionPolicy(checkpoint_keep=3), 1)
    writer.commit(writer.capture(StepBoundary(1, Position(), {}, {}), copied=False))
    select_checkpoint(folder)  # from now on it is in the page cache
    file = MemoryFile(layout.half_bytes(int(size_mb * 1e6) + (4 << 20)))
    held = HeldMemory(os.getpid(), file.descriptor, None)
    times: dict[str, list[float]] = {"memory": [], "disk": []}
    for step in range(2, 2 + turns):
        room = file.begin()
        room.seal(writer.copy_to_memory(StepBoundary(step, Position(), {}, {}), room)())
        began = time.monotonic()
        select_checkpoint(folder)
        memory = MemoryCheckpoint(os.open(f"/proc/self/fd/{file.descriptor}", os.O_RDONLY), "bench", 3)
        with memory.as_folder() as place:
            restore_checkpoint(tracked, place, 1, memory=memory)
        times["memory"].append(time.monotonic() - began)
        began = time.monotonic()
        salvage(held, SalvageRequest(folder, "bench", 3), None)
        chosen = select_checkpoint(folder).path
        assert chosen is not None
        restore_checkpoint(tracked, chosen, 1)
        times["disk"].append(time.monotonic() - began)
        shutil.rmtree(chosen)
    held.close()
    file.close()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=float, nargs="+", default=[100, 400])
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    table, results = Table("state", "from memory, s", "from the disk, s", "ratio"), {}
    for size in options.sizes:
        with tempfile.TemporaryDirectory(prefix="memory-restores-") as folder:
            results[f"{size:g}"] = times = measured(size, options.turns, Path(folder))
        ratio = statistics.median(mine / other for mine, other in zip(times["memory"], times["disk"], strict=True))
        table.add_row(f"{size:g} MB", _spread(times["memory"]), _spread(times["disk"]), f"{ratio:.2f}")
    Console(width=120).print(table)
    harness.write("memory_restores", results)


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
