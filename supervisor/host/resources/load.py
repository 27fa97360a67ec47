"""Counters of the host that tell why programs become slower: stolen CPU time, stalls, swapping, heat."""

import os
import time
from collections.abc import Iterable
from pathlib import Path

from supervisor.core.failures.slowness import HostLoad

PROC, CPUS = Path("/proc"), Path("/sys/devices/system/cpu")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def read_load(proc: Path = PROC, cpus: Path = CPUS) -> HostLoad:
    """The counters now; what this host does not show is None. Reads some small files."""
    cpu_s, steal_s = _cpu_times(proc)
    return HostLoad(
        at=time.monotonic(),
        cpu_s=cpu_s,
        steal_s=steal_s,
        cpu_stall_s=_stall_s(proc / "pressure" / "cpu"),
        memory_stall_s=_stall_s(proc / "pressure" / "memory"),
        io_stall_s=_stall_s(proc / "pressure" / "io"),
        swapped_pages=_swapped_pages(proc),
        throttled=_sum(cpus.glob("cpu[0-9]*/thermal_throttle/core_throttle_count")),
        megahertz=_mean_megahertz(cpus),
    )


def _cpu_times(proc: Path) -> tuple[float | None, float | None]:
    words = _read(proc / "stat").partition("\n")[0].split()
    if len(words) < 9 or not all(word.isdecimal() for word in words[1:9]):
        return None, None
    ticks = list(map(int, words[1:9]))  # user, nice, system, idle, iowait, irq, softirq, steal: proc_stat(5)
    return sum(ticks) / TICKS_PER_S, ticks[7] / TICKS_PER_S


def _stall_s(path: Path) -> float | None:
    """Seconds in which some process waited (Documentation/accounting/psi.rst)."""
    line = next((line for line in _read(path).splitlines() if line.startswith("some ")), "")
    total = line.rpartition("total=")[2]
    return int(total) / 1e6 if total.isdecimal() else None


def _swapped_pages(proc: Path) -> float | None:
    pairs = dict(line.split(maxsplit=1) for line in _read(proc / "vmstat").splitlines() if " " in line)
    counts = [pairs.get(name, "") for name in ("pswpin", "pswpout")]
    return float(sum(map(int, counts))) if all(count.isdecimal() for count in counts) else None


def _mean_megahertz(cpus: Path) -> float | None:
    paths = list(cpus.glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))
    total = _sum(paths)
    return None if total is None else total / len(paths) / 1000


def _sum(paths: Iterable[Path]) -> float | None:
    texts = [_read(path) for path in paths]
    known = [int(text) for text in texts if text.isdecimal()]
    return float(sum(known)) if known else None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
