"""Detects divergence (metrics that are not finite, a loss far too high) and keeps the list of batches to skip."""

import json
import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.protocol import durable, layout
from supervisor.protocol.formats import check_format
from worker.progress.metrics import replica_values

WINDOW = 100  # losses that a new one is compared with: enough for a median, few enough to follow the training
MIN_LOSSES = 30  # with fewer nobody knows what is usual; the first steps are unlike all others
MAD_TO_SIGMA = 1.4826  # a median absolute deviation times this is the standard deviation of normal values
MIN_DEVIATION = 1e-3  # of the median: the least deviation, for a loss that hardly moves
MAX_STEPS = 1000  # whose batches are remembered; there are fewer between two saves
SUSPECT_STEPS = 2  # whose batches may be the cause: the step of the loss, and the one with the update before it
FORMAT = 1
MAX_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Divergence:
    """Training diverged at `step`. `batches`: (epoch, batch) of the possible causes, if they are known."""

    step: int
    text: str
    batches: tuple[tuple[int, int], ...] = ()


class SpikeDetector:
    """Finds losses that lie `factor` deviations (median absolute deviation) above the median of those before them."""

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._window: deque[float] = deque(maxlen=WINDOW)

    def is_spike(self, loss: float) -> bool:
        """Whether this loss is a spike. If it is not, later ones are compared with it."""
        if len(self._window) >= MIN_LOSSES:
            median = statistics.median(self._window)
            deviation = statistics.median(abs(value - median) for value in self._window)
            if loss - median > self._factor * max(deviation * MAD_TO_SIGMA, abs(median) * MIN_DEVIATION):
                return True
        self._window.append(loss)
        return False


class DivergenceWatch:
    """Collects the metrics of each step and checks them later, when the newest are read anyway."""

    def __init__(self, spike: float | None = None) -> None:
        self._pending: list[tuple[int, dict[str, Any]]] = []
        self._batches: deque[tuple[int, tuple[tuple[int, int], ...]]] = deque(maxlen=MAX_STEPS)
        self._spikes = SpikeDetector(spike) if spike is not None else None

    def record_step(self, step: int, metrics: Mapping[str, Any], batches: Iterable[tuple[int, int]] = ()) -> None:
        """Records a step with its batches. Does not wait for the metrics."""
        self._batches.append((step, tuple(batches)))
        watched = {name: value for name, value in metrics.items() if is_watched(name)}
        if watched:
            self._pending.append((step, watched))

    def find_divergence(self) -> Divergence | None:
        """The first divergence since the last call. Waits for the newest recorded step."""
        pending, self._pending = self._pending, []
        for step, metrics in pending:
            for name, value in metrics.items():
                text = self._diagnose(name, replica_values(value))
                if text is not None:
                    return self.divergence_at(step, f"{name} of step {step} {text}")
        return None

    def divergence_at(self, step: int, text: str, fine_at: int | None = None) -> Divergence:
        """The divergence at `step`, with the batches that may be the cause: all since `fine_at`, if it is known."""
        after = step - SUSPECT_STEPS if fine_at is None else fine_at
        suspects = [batch for at, batches in self._batches if after < at <= step for batch in batches]
        return Divergence(step, text, tuple(suspects))

    def _diagnose(self, name: str, values: list[float]) -> str | None:
        bad = next((value for value in values if not math.isfinite(value)), None)
        if bad is not None:
            return f"is {bad}"
        mean = sum(values) / len(values)
        if name == "loss" and self._spikes is not None and self._spikes.is_spike(mean):
            return f"is {mean:.6g}, far above the losses before it (loss_spike)"
        return None


def is_watched(name: str) -> bool:
    """Whether a metric has to be finite: `loss`, any `…_loss`, and `gradient_norm`."""
    return name in ("loss", "gradient_norm") or name.endswith("_loss")


def read_skipped(directory: Path) -> frozenset[tuple[int, int]]:
    """(epoch, batch) of each batch that this job skips.

    Raises OSError, NewerFormat among them, or ValueError for a damaged file.
    """
    return frozenset((entry["epoch"], entry["batch"]) for entry in _read_entries(directory))


def add_skipped(directory: Path, divergence: Divergence, attempt: int) -> None:
    """Makes all later attempts skip the batches; durable when it returns. Raises OSError or ValueError."""
    new = [
        {"epoch": epoch, "batch": batch, "step": divergence.step, "attempt": attempt, "reason": divergence.text}
        for epoch, batch in divergence.batches
    ]
    known = _read_entries(directory)
    there = {(entry["epoch"], entry["batch"]) for entry in known}
    known += [entry for entry in new if (entry["epoch"], entry["batch"]) not in there]
    durable.write_file(
        directory / layout.SKIPPED, (json.dumps({"format": FORMAT, "left_out": known}, indent=1) + "\n").encode()
    )


def _read_entries(directory: Path) -> list[dict[str, Any]]:
    try:
        body = json.loads(durable.read_file(directory / layout.SKIPPED, MAX_BYTES))
    except FileNotFoundError:
        return []
    except (ValueError, RecursionError):
        body = None
    if isinstance(body, dict):
        check_format(body, FORMAT, layout.SKIPPED)
    entries = body.get("left_out") if isinstance(body, dict) else None
    if not isinstance(entries, list) or not all(map(_is_entry, entries)):
        raise ValueError(f"{layout.SKIPPED} in {directory} is damaged; move it away to skip no batches")
    return entries


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and all(type(entry.get(key)) is int for key in ("epoch", "batch"))


def batch_names(batches: Iterable[tuple[int, int]]) -> tuple[str, ...]:
    """Each batch as `EPOCH:BATCH`, both from 0."""
    return tuple(f"{epoch}:{batch}" for epoch, batch in batches)


def abbreviate(batches: tuple[str, ...]) -> str:
    """The batches for one line of text: of many, the first and the last."""
    return ", ".join(batches) if len(batches) <= 4 else f"{len(batches)}, from {batches[0]} to {batches[-1]}"


def leave_out_batches(directory: Path, divergence: Divergence, attempt: int) -> tuple[str, tuple[str, ...]]:
    """Has later attempts leave out what training diverged on. Returns what to say, and the batches."""
    try:
        add_skipped(directory, divergence, attempt)
    except (OSError, ValueError) as error:
        return f"{divergence.text}; cannot record which batches to leave out: {error}", ()
    batches = batch_names(divergence.batches)
    listed = abbreviate(batches) or "none, as the script does not use run.batches"
    return f"{divergence.text}; batches left out from now on (epoch:batch, from 0): {listed}", batches
