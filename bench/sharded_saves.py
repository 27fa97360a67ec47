"""Measures a save of which each of several workers writes its share, beside one that the chief writes alone.

Run with `python -m bench.sharded_saves`; prints a table and writes bench/results/sharded_saves.json. Two and four
workers on this machine hold the same 400 MB; after each step one of them, or all, write a checkpoint, on one disk,
while no step is made. Rounds of both kinds follow each other, so that they meet the same load. `training waits` is
what the chief's step takes: the copy of its share, and what the workers agree on.

With `--limit-mb 100`, as root: each worker writes at most so many MB a second (a blkio control group of its own), as
hosts do of which each has a link of its own to the shared file system.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import harness
from bench.harness import ROOT
from supervisor.protocol.checkpoints import manifest, selection
from supervisor.protocol.wire.launch import Launch, SaveShards, without_launch_variables

JOB = ROOT / "bench" / "sharded_saves_job.py"
WORKERS = (2, 4)
KINDS: dict[str, SaveShards] = {"the chief": "never", "all": "auto"}
PATIENCE_S = 900.0
Figures = list[tuple[float, float]]


@contextmanager
def limited(folder: Path, bytes_s: int | None) -> Iterator[dict[str, str]]:
    """A control group for each rank that may write so much to the disk of a folder, and how the job is told."""
    if bytes_s is None:
        yield {}
        return
    with tempfile.TemporaryDirectory() as mounted:
        subprocess.run(["mount", "-t", "cgroup", "-o", "blkio", "none", mounted], check=True)
        groups = Path(mounted, f"stepkeeper-bench-{os.getpid()}")
        device = folder.stat().st_dev
        try:
            groups.mkdir()
            for rank in range(max(WORKERS)):
                (groups / str(rank)).mkdir()
                limit = f"{os.major(device)}:{os.minor(device)} {bytes_s}"
                (groups / str(rank) / "blkio.throttle.write_bps_device").write_text(limit)
            yield {"GROUPS": str(groups)}
        finally:
            for rank in range(max(WORKERS)):
                (groups / str(rank)).rmdir()
            groups.rmdir()
            subprocess.run(["umount", mounted], check=True)


def measure(
    workers: int, shards: SaveShards, megabytes: int, saves: int, folder: Path, variables: Mapping[str, str]
) -> Figures:
    """Of each save but the first: how long training waited, and how long it took until it was on the disk."""
    launch = Launch(workers=workers, strategy="multiworker", save_shards=shards, checkpoint_keep=1)
    environment = {
        **without_launch_variables(os.environ),
        **launch.to_environment(),
        **variables,
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, str(JOB), str(folder), str(megabytes), str(saves)]
    subprocess.run(command, env=environment, timeout=PATIENCE_S, check=True, stderr=subprocess.DEVNULL)
    (newest,) = selection.committed_checkpoints(folder / "ckpt")
    proven = manifest.verify_checkpoint(folder / "ckpt" / str(newest))
    files = sum(file.name.startswith("ckpt.data") for file in proven.files)
    if files != (1 if shards == "never" else workers):
        raise SystemExit(f"{newest} has {files} data files")
    lines = (folder / "saves.jsonl").read_text().splitlines()
    return [(stall_s, took_s) for stall_s, took_s in map(json.loads, lines)][1:-1]  # the last waits for its end


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mb", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--saves", type=int, default=5, help="in each round")
    parser.add_argument("--folder", type=Path, default=harness.RESULTS, help="folder on the disk to measure")
    parser.add_argument("--limit-mb", type=int, help="what each worker may write in a second")
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    harness.compiled()
    figures: dict[str, Figures] = {f"{workers}, {kind}": [] for workers in WORKERS for kind in KINDS}
    turns = [
        (workers, kind)
        for number in range(options.rounds)
        for workers in WORKERS
        for kind in list(KINDS)[:: 1 if number % 2 else -1]
    ]
    with limited(options.folder, None if options.limit_mb is None else options.limit_mb * 1_000_000) as variables:
        for workers, kind in turns:
            folder = Path(tempfile.mkdtemp(prefix="sharded-", dir=options.folder))
            try:
                measured = measure(workers, KINDS[kind], options.mb, options.saves, folder, variables)
            finally:
                shutil.rmtree(folder)
            print(f"{workers} workers, {kind}: {spread([took for _, took in measured])} s", file=sys.stderr)
            figures[f"{workers}, {kind}"] += measured
    table = Table("workers, who writes", "save, s", "training waits, s")
    for name, saves in figures.items():
        table.add_row(name, spread([took for _, took in saves]), spread([stall for stall, _ in saves]))
    limit = "" if options.limit_mb is None else f", {options.limit_mb} MB/s for each worker"
    Console(width=120).print(f"{options.mb} MB{limit}; median, minimum and maximum", table)
    content = {"mb": options.mb, "limit_mb": options.limit_mb, "saves": figures}
    harness.write("sharded_saves" if not limit else "sharded_saves_limited", content, options.folder)


if __name__ == "__main__":
    main()
