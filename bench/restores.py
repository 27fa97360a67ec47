"""Measures what reading a checkpoint ahead gains at a start: restores a large state from memory or from the disk.

Run with `python -m bench.restores` (under two minutes); prints a table and writes bench/results/restores.json. Each
start is a new process that imports TensorFlow, builds the model, restores and makes a first step; the ways take turns.
`proven`: the bytes are in the page cache, as they are once the daemon has read them all to prove them, which it does
while the worker imports TensorFlow. `disk`: none is. `ahead`: none is at first, and a thread of the worker reads them
from its first instruction on.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import harness

WAYS = ("proven", "disk", "ahead")
PARTS = ("import", "build", "restore", "first step")
LAYERS, BATCH = 6, 8
BYTES_OF_PARAMETER = 12  # the weight and Adam's two moments
READ_BYTES = 4 << 20


def read(files: list[Path]) -> None:
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.read(READ_BYTES):
                pass


def forget(files: list[Path]) -> None:
    """Removes the files from the page cache; bytes that are not yet on the disk would stay."""
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def start(way: str, size_mb: float, folder: Path) -> dict[str, float]:
    """The seconds of each part of a start."""
    marks = [time.perf_counter()]
    if way == "ahead":
        threading.Thread(target=read, args=(list(folder.iterdir()),), daemon=True).start()
    tf, tracked, strategy, step = _built(size_mb, marks)
    from worker.checkpoint import restore

    restore.build_variables(tracked, strategy)
    marks.append(time.perf_counter())
    restore.restore_checkpoint(tracked, folder, 1)
    marks.append(time.perf_counter())
    step(tf.random.normal([BATCH, tracked.model.input_shape[1]])).numpy()
    marks.append(time.perf_counter())
    return {part: marks[number + 1] - marks[number] for number, part in enumerate(PARTS)}


def _built(size_mb: float, marks: list[float]) -> Any:
    import tensorflow as tf

    import worker

    marks.append(time.perf_counter())
    strategy = worker.strategy("one-device")
    width = int((size_mb * 1e6 / BYTES_OF_PARAMETER / LAYERS) ** 0.5)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((width,)), *(tf.keras.layers.Dense(width) for _ in range(LAYERS))])
        optimizer = tf.keras.optimizers.Adam(1e-4)

    def on_replica(inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(inputs)))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    step = tf.function(lambda inputs: strategy.run(on_replica, args=(inputs,)))
    return tf, tf.train.Checkpoint(model=model, optimizer=optimizer), strategy, step


def make(size_mb: float, directory: Path) -> None:
    """Commits a checkpoint to the folder."""
    import worker

    _, tracked, strategy, _ = _built(size_mb, [])
    with worker.Run(tracked, strategy=strategy, directory=directory):
        pass


def child(*arguments: object) -> str:
    """The last line that `python -m bench.restores --child ...` printed."""
    command = [sys.executable, "-m", "bench.restores", "--child", *map(str, arguments)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    ran = subprocess.run(command, cwd=harness.ROOT, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise SystemExit(f"{arguments[0]}: {ran.stderr[-2000:]}")
    return ran.stdout.splitlines()[-1]


def measured(size_mb: float, turns: int, directory: Path) -> dict[str, list[dict[str, float]]]:
    child("make", size_mb, directory)
    (folder,) = directory.glob("step-*")
    ways: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for turn in range(turns + 1):
        for way in WAYS if turn % 2 else WAYS[::-1]:
            files = list(folder.iterdir())
            forget(files)
            if way == "proven":
                read(files)
            times = json.loads(child(way, size_mb, folder))
            if turn:  # the first finds TensorFlow itself on the disk
                ways[way].append(times)
    return ways


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        way, size_mb, folder = sys.argv[2], float(sys.argv[3]), Path(sys.argv[4])
        print(json.dumps(start(way, size_mb, folder)) if way in WAYS else make(size_mb, folder))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mb", type=float, default=400)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=harness.RESULTS, help="folder on the disk to measure")
    given = parser.parse_args()
    given.folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="restores-", dir=given.folder) as directory:
        ways = measured(given.mb, given.turns, Path(directory))
    table = Table("bytes", *(f"{part}, s" for part in PARTS), "all, s", "restore, of proven")
    for way, turns in ways.items():
        ratios = [one["restore"] / other["restore"] for one, other in zip(turns, ways["proven"], strict=True)]
        parts = [spread([turn[part] for turn in turns]) for part in PARTS]
        table.add_row(way, *parts, spread([sum(turn.values()) for turn in turns]), spread(ratios))
    Console(width=180).print(f"{given.mb:g} MB, {given.turns} rounds; median, minimum and maximum", table)
    print(harness.write("restores", {"mb": given.mb, "ways": ways}, given.folder))


if __name__ == "__main__":
    main()
