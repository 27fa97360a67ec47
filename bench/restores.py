"""Measures restores: beside TensorFlow's and a plain read of the file, and what reading ahead gains at a start.

Run with `python -m bench.restores` (under three minutes); prints two tables and writes bench/results/restores.json.

The first compares in one process: `memory`: the copy in memory that a killed worker left. `cached`: the checkpoint is
in the page cache. `kept`: it was just saved past the cache, and the run has kept it there
(`worker/saving/page_cache.py`). `disk`: nothing is in the cache. Each of them is proven, every byte, and then restored.
Beside them TensorFlow's restore of its own file from the page cache, which proves nothing first, and a read of the file
past the cache by four threads, as dd would with that many requests.

For the second each start is a new process that imports TensorFlow, builds the model, restores and makes a first step;
the ways take turns. `proven`: the bytes are in the page cache, as they are once the daemon has read them all to prove
them, which it does while the worker imports TensorFlow. `disk`: none is. `ahead`: none is at first, and a thread of the
worker reads them from its first instruction on.
"""

import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
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
DIRECT_THREADS, DIRECT_BYTES = 4, 1 << 20
KEPT_WITHIN_S = 60.0
TOUCH_BYTES = "import sys; b'x' * int(sys.argv[1])"
COPY, PLACES = "memory", ("cached", "kept", "disk")
THEIRS, DIRECT = "TensorFlow, cached", "read past the cache"


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


def read_direct(path: Path) -> None:
    """Reads a file past the page cache, with as many requests at a time as DIRECT_THREADS."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    offsets = iter(range(0, path.stat().st_size, DIRECT_BYTES))

    def work() -> None:
        with mmap.mmap(-1, DIRECT_BYTES) as buffer:
            for offset in offsets:  # next() of a range is one operation under the interpreter's lock
                os.preadv(descriptor, [buffer], offset)

    with ThreadPoolExecutor(DIRECT_THREADS) as threads:
        for future in [threads.submit(work) for _ in range(DIRECT_THREADS)]:
            future.result()
    os.close(descriptor)


def compare(size_mb: float, turns: int, directory: Path) -> dict[str, list[float]]:
    """Seconds, of each turn, by what was measured: restores with their proof, `... proof` alone, and the others."""
    tf, tracked, strategy, _ = _built(size_mb, [])
    from supervisor.protocol.checkpoints import manifest
    from supervisor.protocol.checkpoints.retention import RetentionPolicy
    from supervisor.protocol.memory_tier.layout import half_bytes
    from worker.checkpoint import restore
    from worker.checkpoint.tensorflow_writer import StepBoundary, TensorFlowWriter
    from worker.saving.commit import CheckpointOrigin
    from worker.saving.memory_checkpoint import MemoryCheckpoint
    from worker.saving.memory_file import MemoryFile
    from worker.saving.page_cache import CachedCheckpoint
    from worker.state.state_file import Position

    restore.build_variables(tracked, strategy)
    ours = directory / "ours"
    ours.mkdir()
    policy = RetentionPolicy(checkpoint_keep=1)
    writer = TensorFlowWriter(tracked, ours, CheckpointOrigin("bench", 1, {}, {}), policy, 1)
    manager = tf.train.CheckpointManager(tracked, str(directory / "theirs"), max_to_keep=1)
    manager.save()
    theirs = list((directory / "theirs").iterdir())
    cached = CachedCheckpoint(ours, None)
    memory = MemoryFile(half_bytes(int(1.1 * size_mb * 1e6) + (4 << 20)))
    taken: dict[str, list[float]] = {}

    def record(name: str, began: float) -> None:
        taken.setdefault(name, []).append(time.perf_counter() - began)

    for turn in range(turns + 1):
        touch_memory(int(3e6 * size_mb))
        committed = writer.commit(writer.capture(StepBoundary(turn, Position(), {}, {}), copied=False))
        writer.tidy_up(committed.name)
        folder = ours / str(committed.name)
        files = list(folder.iterdir())
        cached.replace(folder.name, committed.size_bytes)
        for thread in threading.enumerate():
            if thread.name == "stepkeeper-cache":
                thread.join(KEPT_WITHIN_S)
        for place in ("kept", "cached", "disk"):
            if place == "cached":
                read(files)
            elif place == "disk":
                forget(files)
            began = time.perf_counter()
            manifest.verify_checkpoint(folder)
            record(f"{place} proof", began)
            restore.restore_checkpoint(tracked, folder, 1)
            record(place, began)
        room = memory.begin()
        room.seal(writer.copy_to_memory(StepBoundary(turn, Position(), {}, {}), room)())
        began = time.perf_counter()
        copy = MemoryCheckpoint(os.open(f"/proc/self/fd/{memory.descriptor}", os.O_RDONLY), "bench", 1)
        record(f"{COPY} proof", began)
        with copy.as_folder() as folder:
            restore.restore_checkpoint(tracked, folder, 1, memory=copy)
        record(COPY, began)
        read(theirs)
        began = time.perf_counter()
        manager.restore_or_initialize()
        record(THEIRS, began)
        largest = max(files, key=lambda path: path.stat().st_size)
        forget([largest])
        began = time.perf_counter()
        read_direct(largest)
        record(DIRECT, began)
    return {name: seconds[1:] for name, seconds in taken.items()}  # the first one sets up what later ones use


def touch_memory(count: int) -> None:
    """Has so many free bytes be there. A virtual machine may have given free memory to its host: it comes back page by
    page as it is touched first, which for 2,000 MB takes seconds, and the disk's transfers touch it for the host alone.
    """
    subprocess.run([sys.executable, "-c", TOUCH_BYTES, str(count)], check=True)


def comparison_table(size_mb: float, taken: dict[str, list[float]]) -> Table:
    table = Table(f"{size_mb:g} MB", "all, s", "proof, s", "of TensorFlow's", "proof, of a read past the cache")
    for place in (COPY, *PLACES):
        proofs = taken[f"{place} proof"]
        table.add_row(
            place,
            spread(taken[place]),
            spread(proofs),
            spread([one / other for one, other in zip(taken[place], taken[THEIRS], strict=True)]),
            spread([one / other for one, other in zip(proofs, taken[DIRECT], strict=True)]),
        )
    for name in (THEIRS, DIRECT):
        table.add_row(name, spread(taken[name]), "", "", "")
    return table


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
        if way == "compare":
            print(json.dumps(compare(size_mb, int(sys.argv[5]), folder)))
        else:
            print(json.dumps(start(way, size_mb, folder)) if way in WAYS else make(size_mb, folder))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mb", type=float, default=400)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--no-starts", action="store_true", help="leave out the second table")
    parser.add_argument("--folder", type=Path, default=harness.RESULTS, help="folder on the disk to measure")
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    console = Console(width=180)
    with tempfile.TemporaryDirectory(prefix="restores-", dir=options.folder) as directory:
        compared = json.loads(child("compare", options.mb, directory, options.turns))
    console.print(f"{options.turns} rounds; median, minimum and maximum", comparison_table(options.mb, compared))
    ways: dict[str, list[dict[str, float]]] = {}
    if not options.no_starts:
        with tempfile.TemporaryDirectory(prefix="restores-", dir=options.folder) as directory:
            ways = measured(options.mb, options.turns, Path(directory))
        console.print(starts_table(ways))
    print(harness.write("restores", {"mb": options.mb, "compared": compared, "ways": ways}, options.folder))


def starts_table(ways: dict[str, list[dict[str, float]]]) -> Table:
    table = Table("bytes", *(f"{part}, s" for part in PARTS), "all, s", "restore, of proven")
    for way, turns in ways.items():
        ratios = [one["restore"] / other["restore"] for one, other in zip(turns, ways["proven"], strict=True)]
        parts = [spread([turn[part] for turn in turns]) for part in PARTS]
        table.add_row(way, *parts, spread([sum(turn.values()) for turn in turns]), spread(ratios))
    return table


if __name__ == "__main__":
    main()
