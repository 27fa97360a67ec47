"""Measures whether several writers are faster than one: the same bytes in 1, 2 and 4 files.

Run with `python -m bench.shards` (under two minutes); prints a table and writes bench/results/shards.json. Each writer
is a thread with a file of its own and does what a save does: checksum, hash, write, begin with the disk, sync. Turns
of one, two and four writers follow each other, so that they meet the same load, with nothing left to write before each.
Every turn is taken twice: alone, and beside processes that compute on every core, as training does; of those it is said
how much of their work was lost.
"""

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

import google_crc32c
import numpy as np
from rich.console import Console
from rich.table import Table

from bench import harness
from supervisor.protocol.checkpoints.new_folder import PIECE_BYTES, NewFile, NewFolder

WRITERS = (1, 2, 4)
QUIET_S = 1.0  # for the rate of the work beside, before each turn
SIDE = 192  # of the matrices that it multiplies


@dataclass
class Figures:
    """Of one number of writers, one for each turn. `cpu_s`: of this process; `lost_s`: core seconds of work beside."""

    alone_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    beside_s: list[float] = field(default_factory=list)
    lost_s: list[float] = field(default_factory=list)


class Work:
    """Processes that compute, one for each core."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._done = [context.Value("Q", 0, lock=False) for _ in range(os.cpu_count() or 1)]
        self._processes = [context.Process(target=_compute, args=(counter,), daemon=True) for counter in self._done]
        for process in self._processes:
            process.start()
        while not all(counter.value for counter in self._done):
            time.sleep(0.05)

    def done(self) -> int:
        return sum(int(counter.value) for counter in self._done)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


def _compute(done) -> None:  # type: ignore[no-untyped-def]
    matrix = np.random.default_rng(0).random((SIDE, SIDE))
    while True:
        matrix = matrix @ matrix
        matrix /= matrix.max()
        done.value += 1


def saved(content: np.ndarray, writers: int, folder: Path) -> float:
    """Writes the checkpoint. Returns the seconds until it is on the disk under its name."""
    size = -(-len(content) // writers)
    began = time.perf_counter()
    with NewFolder(folder / "step.partial") as new, ThreadPoolExecutor(writers) as threads:
        files = [new.create(f"part-{number}") for number in range(writers)]
        parts = [content[number * size : (number + 1) * size] for number in range(writers)]
        list(threads.map(_write, files, parts))
        new.commit(folder / "step")
    took_s = time.perf_counter() - began
    for path in (folder / "step").iterdir():
        path.unlink()
    (folder / "step").rmdir()
    return took_s


def _write(file: NewFile, content: np.ndarray) -> None:
    crc = 0
    for at in range(0, len(content), PIECE_BYTES):
        piece = content[at : at + PIECE_BYTES]
        crc = google_crc32c.extend(crc, piece)
        file.write(piece.data)
    file.end()
    file.sync()


def measured(content: np.ndarray, turns: int, folder: Path) -> dict[int, Figures]:
    results = {writers: Figures() for writers in WRITERS}
    for writers in WRITERS:
        saved(content, writers, folder)  # the first is not counted
    for turn in range(turns):
        for writers in WRITERS if turn % 2 else WRITERS[::-1]:
            os.sync()
            cpu = time.process_time()
            results[writers].alone_s.append(saved(content, writers, folder))
            results[writers].cpu_s.append(time.process_time() - cpu)
    work = Work()
    try:
        for turn in range(turns):
            for writers in WRITERS if turn % 2 else WRITERS[::-1]:
                os.sync()
                took_s, lost_s = _beside(work, content, writers, folder)
                results[writers].beside_s.append(took_s)
                results[writers].lost_s.append(lost_s)
    finally:
        work.end()
    return results


def _beside(work: Work, content: np.ndarray, writers: int, folder: Path) -> tuple[float, float]:
    before, began = work.done(), time.perf_counter()
    time.sleep(QUIET_S)
    rate = (work.done() - before) / (time.perf_counter() - began)
    before, began = work.done(), time.perf_counter()
    took_s = saved(content, writers, folder)
    window_s = time.perf_counter() - began
    return took_s, (window_s - (work.done() - before) / rate) * (os.cpu_count() or 1)


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def of_one(values: list[float], one: list[float]) -> str:
    """Of each turn, against the same turn with one writer; median, and all of them."""
    return spread([mine / theirs for mine, theirs in zip(values, one, strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mb", type=float, default=400)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=harness.RESULTS, help="folder on the disk to measure")
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    content = np.frombuffer(np.random.default_rng(0).bytes(int(options.mb * 1e6)), np.uint8)  # read-only
    with tempfile.TemporaryDirectory(prefix="shards-", dir=options.folder) as folder:
        results = measured(content, options.turns, Path(folder))
    one = results[WRITERS[0]]
    table = Table("writers", "alone, s", "of one", "CPU, s", "beside work, s", "of one", "work lost, core s")
    for writers, result in results.items():
        alone, beside = of_one(result.alone_s, one.alone_s), of_one(result.beside_s, one.beside_s)
        row = (
            spread(result.alone_s),
            alone,
            spread(result.cpu_s),
            spread(result.beside_s),
            beside,
            spread(result.lost_s),
        )
        table.add_row(str(writers), *row)
    Console(width=180).print(f"{options.mb:g} MB, {options.turns} rounds; median, minimum and maximum", table)
    figures = {str(writers): asdict(result) for writers, result in results.items()}
    print(harness.write("shards", {"mb": options.mb, "writers": figures}, options.folder))


if __name__ == "__main__":
    main()
