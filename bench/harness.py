"""Shared by the measurements: facts about the machine, compiled modules, the file of results."""

import compileall
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from worker.devices.conditions import processor

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
DISK_MB = 64  # written to measure a disk: less is mostly the device's own memory
SYNCS = 20

Machine = dict[str, Any]


def machine(folder: Path | None = None) -> Machine:
    """The facts about the machine that results depend on; the load is that of the last five minutes.

    `folder`: on the disk that was used, by default that of temporary files. Its rates are measured now.
    """
    folder = Path(tempfile.gettempdir()) if folder is None else folder
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[1], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "disk": {"filesystem": _filesystem(folder), **_disk_rates(folder)},
    }


def describe(computer: Machine) -> str:
    """One line for people."""
    disk = computer["disk"]
    return (
        f"{computer['cores']} cores of {computer['processor']}, load {computer['load']:g}, Linux {computer['kernel']}, "
        f"Python {computer['python']}; disk: {disk['filesystem']}, {disk['write_mb_s']:.0f} MB/s written and synced, "
        f"{disk['sync_ms']:.2f} ms for a block of 4 KiB and its sync"
    )


def _filesystem(folder: Path) -> str:
    path = folder.resolve()
    # later mounts hide earlier ones
    mounts = {Path(partition.mountpoint): partition for partition in psutil.disk_partitions(all=True)}
    place = next((mounts[parent] for parent in (path, *path.parents) if parent in mounts), None)
    return f"{place.fstype} on {place.device}" if place is not None else "unknown"


def _disk_rates(folder: Path) -> dict[str, float]:
    """What this disk does now: MB a second with one sync at the end, and milliseconds of a small synced write."""
    block = os.urandom(1 << 20)
    with tempfile.NamedTemporaryFile(dir=folder, buffering=0) as file:
        began = time.perf_counter()
        for _ in range(DISK_MB):
            file.write(block)
        os.fsync(file.fileno())
        written_s = time.perf_counter() - began
        synced_s = []
        for _ in range(SYNCS):
            began = time.perf_counter()
            file.write(block[:4096])
            os.fsync(file.fileno())
            synced_s.append(time.perf_counter() - began)
    return {
        "write_mb_s": round(DISK_MB * 1.048576 / written_s, 1),
        "sync_ms": round(1000 * statistics.median(synced_s), 3),
    }


def compiled() -> None:
    """Compiles our modules, as pip does with what it installs: no figure has that in it, whatever Python is told."""
    for package in ("supervisor", "worker"):
        compileall.compile_dir(ROOT / package, quiet=1)


def write(name: str, content: dict[str, Any], folder: Path | None = None) -> Path:
    """Writes bench/results/NAME.json, and prints on which machine it was measured. `folder`: as for `machine`."""
    computer = machine(folder)
    print(describe(computer))
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": computer, **content}, indent=1) + "\n")
    return path
