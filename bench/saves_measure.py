"""Measures what one save costs a training loop, in the same way for all systems. Uses only the standard library."""

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

BASE_STEPS = 10  # without saves, before and after each save: what a step costs now
FIGURES = ("loss_ms", "durable_ms", "written_mb")


@dataclass
class Begun:
    """A save that goes on beside training. `ended`: asked after each step; then `seconds` it took to the end."""

    ended: Callable[[], bool]
    seconds: Callable[[], float]


@dataclass
class Figures:
    """One number for each save. `loss_ms`: training time lost; `durable_ms`: from the request until it is written, and
    synced if the system syncs; `written_mb`: what this process wrote meanwhile. `restore_ms`: one for each restore;
    `proof_ms`: the part of it that proved every byte, where a system does that by itself."""

    loss_ms: list[float] = field(default_factory=list)
    durable_ms: list[float] = field(default_factory=list)
    written_mb: list[float] = field(default_factory=list)
    restore_ms: list[float] = field(default_factory=list)
    proof_ms: list[float] = field(default_factory=list)
    note: str = ""

    def add(self, numbers: dict[str, float]) -> None:
        for name in FIGURES:
            getattr(self, name).append(numbers[name])


def written_bytes() -> int:
    """The bytes that this process has written to the disk so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["write_bytes"])


def measure(stepped: Callable[[], float], save: Callable[[], float | Begun]) -> dict[str, float]:
    """One save between steps. `stepped`: trains one step, gives its seconds; `save`: gives its seconds if it is over.

    Loss: the sum, over the steps from the save until it is over and two more, of (step time - median step time).
    """
    os.sync()  # what the system before left to be written would be paid for by this one's fsync
    quiet = [stepped() for _ in range(BASE_STEPS)]
    before, began = written_bytes(), time.perf_counter()
    outcome = save()
    called_s = time.perf_counter() - began
    steps = [stepped()]
    while isinstance(outcome, Begun) and not outcome.ended():
        steps.append(stepped())
    steps += [stepped(), stepped()]
    written = written_bytes() - before
    quiet += [stepped() for _ in range(BASE_STEPS)]
    took_s = outcome.seconds() if isinstance(outcome, Begun) else outcome
    loss_s = called_s + sum(steps) - len(steps) * statistics.median(quiet)
    return {"loss_ms": loss_s * 1000, "durable_ms": took_s * 1000, "written_mb": written / 1e6}


def timed(act: Callable[[], object]) -> float:
    """Seconds."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began
