"""Whether training diverged: figures that are not finite, or a loss far off; and the batches left out because of it."""

import json
import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.protocol import durable, layout
from worker.progress.figures import replica_values

WINDOW = 100  # losses that a new one is compared with: enough for a median, few enough to follow a training
MIN_LOSSES = 30  # before that many there is no saying what is usual; the first steps are unlike all others
MAD_TO_SIGMA = 1.4826  # a median absolute deviation times this is a standard deviation, where there are no outliers
MIN_DEVIATION = 1e-3  # of the median: what counts as a deviation at least, where a loss hardly moves
MAX_STEPS = 1000  # steps whose batches are known; a save takes fewer
SUSPECT_STEPS = 2  # steps whose batches may have done it: that of the loss, and the one whose update came before it
MAX_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Divergence:
    """Training diverged at `step`. `batches`: (epoch, batch) of those that may have done it, if they are known."""

    step: int
    text: str
    batches: tuple[tuple[int, int], ...] = ()


class SpikeDetector:
    """The rule for a loss far off: above the median of those before it by `factor` deviations (median absolute)."""

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._window: deque[float] = deque(maxlen=WINDOW)

    def is_spike(self, loss: float) -> bool:
        """Whether this loss is one; else it belongs to what later ones are compared with."""
        if len(self._window) >= MIN_LOSSES:
            median = statistics.median(self._window)
            off = statistics.median(abs(each - median) for each in self._window)
            if loss - median > self._factor * max(off * MAD_TO_SIGMA, abs(median) * MIN_DEVIATION):
                return True
        self._window.append(loss)
        return False


class DivergenceWatch:
    """Keeps the figures of each step until somebody looks, which is when the newest are read anyway."""

    def __init__(self, spike: float | None = None) -> None:
        self._pending: list[tuple[int, dict[str, Any]]] = []
        self._batches: deque[tuple[int, tuple[tuple[int, int], ...]]] = deque(maxlen=MAX_STEPS)
        self._spikes = SpikeDetector(spike) if spike is not None else None

    def record_step(self, step: int, metrics: Mapping[str, Any], batches: Iterable[tuple[int, int]] = ()) -> None:
        """A step was done, with these batches. Waits for nothing."""
        self._batches.append((step, tuple(batches)))
        watched = {name: value for name, value in metrics.items() if is_watched(name)}
        if watched:
            self._pending.append((step, watched))

    def find_divergence(self) -> Divergence | None:
        """The first thing wrong since the last look. Waits for the newest step that was noted."""
        pending, self._pending = self._pending, []
        for step, metrics in pending:
            for name, value in metrics.items():
                text = self._diagnose(name, replica_values(value))
                if text is not None:
                    return self.divergence_at(step, f"{name} of step {step} {text}")
        return None

    def divergence_at(self, step: int, text: str, fine_at: int | None = None) -> Divergence:
        """What is wrong at `step`, with the batches that may have done it: all since `fine_at`, where that is known."""
        after = step - SUSPECT_STEPS if fine_at is None else fine_at
        suspects = [each for at, batches in self._batches if after < at <= step for each in batches]
        return Divergence(step, text, tuple(suspects))

    def _diagnose(self, name: str, figures: list[float]) -> str | None:
        bad = next((each for each in figures if not math.isfinite(each)), None)
        if bad is not None:
            return f"is {bad}"
        mean = sum(figures) / len(figures)
        if name == "loss" and self._spikes is not None and self._spikes.is_spike(mean):
            return f"is {mean:.6g}, far above those before it (loss_spike)"
        return None


def is_watched(name: str) -> bool:
    """Whether a figure has to be finite: `loss`, any `…_loss`, and `gradient_norm`. Others may be what they like."""
    return name in ("loss", "gradient_norm") or name.endswith("_loss")


def read_skipped(directory: Path) -> frozenset[tuple[int, int]]:
    """(epoch, batch) of what is left out in this job. Raises OSError, or ValueError if the file is none of ours."""
    return frozenset((each["epoch"], each["batch"]) for each in _read_entries(directory))


def add_skipped(directory: Path, trouble: Divergence, attempt: int) -> None:
    """Has all later attempts leave the batches out; on the disk when it returns. Raises OSError or ValueError."""
    new = [
        {"epoch": epoch, "batch": batch, "step": trouble.step, "attempt": attempt, "reason": trouble.text}
        for epoch, batch in trouble.batches
    ]
    known = _read_entries(directory)
    there = {(each["epoch"], each["batch"]) for each in known}
    known += [each for each in new if (each["epoch"], each["batch"]) not in there]
    durable.write_file(
        directory / layout.SKIPPED, (json.dumps({"format": 1, "left_out": known}, indent=1) + "\n").encode()
    )


def _read_entries(directory: Path) -> list[dict[str, Any]]:
    try:
        body = json.loads(durable.read_file(directory / layout.SKIPPED, MAX_BYTES))
    except FileNotFoundError:
        return []
    if not isinstance(body, dict) or body.get("format") != 1:
        raise ValueError(f"{layout.SKIPPED} in {directory} is not of format 1; move it away to leave nothing out")
    return list(body["left_out"])


def batch_names(batches: Iterable[tuple[int, int]]) -> tuple[str, ...]:
    """As `EPOCH:BATCH`, both from 0."""
    return tuple(f"{epoch}:{batch}" for epoch, batch in batches)


def abbreviate(batches: tuple[str, ...]) -> str:
    """The same on a line: of many the first and the last."""
    return ", ".join(batches) if len(batches) <= 4 else f"{len(batches)}, from {batches[0]} to {batches[-1]}"
