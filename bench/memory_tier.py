"""Measures what copies of the state in memory cost training, with and without them in turn in one process.

Run with `python -m bench.memory_tier`; prints a table and writes bench/results/memory_tier.json. One Keras model with
Adam for each state size, on CPU; every variable changes in every step. Periods with copies and without alternate, and
each pair is compared by itself, as a machine that others use changes from minute to minute. `cost`: by how much the
steps of a period with copies took longer, in all; `waited`: the share of time in which training waited for a copy.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import harness

WARM_UP_STEPS = 5
WARM_UP_COPIES = 4


def measured(size_mb: float, pairs: int, period_s: float, folder: Path) -> dict[str, Any]:
    """What copies cost with one size of state."""
    from bench.saves_tensorflow import Bench
    from worker.saving.memory_tier import MemoryTier

    bench = Bench(size_mb, folder)
    with bench.run:
        checkpoints = bench.run._checkpoints
        for _ in range(WARM_UP_STEPS):
            bench.stepped()
        assert checkpoints._writer is not None
        tier = MemoryTier(checkpoints._attempt, checkpoints._writer.copy_to_memory)
        checkpoints._memory = tier
        while tier._cadence.copies < WARM_UP_COPIES:
            bench.stepped()
        costs, waited, copies, steps_s = [], [], 0, []
        for number in range(pairs):
            by_way = {}
            for way in ("with", "without") if number % 2 else ("without", "with"):
                checkpoints._memory = tier if way == "with" else None
                if way == "with":  # a time without copies pays for none, and none come in advance
                    tier._cadence.credit_s = min(0.0, tier._cadence.credit_s)
                    tier._cadence.counted_at = time.monotonic()
                before, stalled_s, began = tier._cadence.copies, checkpoints.stalled_s, time.perf_counter()
                durations = []
                while time.perf_counter() - began < period_s:
                    durations.append(bench.stepped())
                by_way[way] = statistics.fmean(durations)
                if way == "with":
                    copies += tier._cadence.copies - before
                    waited.append((checkpoints.stalled_s - stalled_s) / sum(durations))
                else:
                    steps_s.append(by_way[way])
            costs.append(by_way["with"] / by_way["without"] - 1)
        result = {
            "step_s": statistics.median(steps_s),
            "interval_s": tier._cadence.interval_s,
            "cost_of_copy_s": tier._cadence.cost_s,
            "memory_bytes": 0 if tier._file is None else tier._file.size_bytes,
            "copies": copies,
            "costs": costs,
            "waited": waited,
            "off": not tier._cadence.is_worth_it,
        }
        checkpoints._memory = tier
    return result


def table_of(results: dict[str, dict[str, Any]]) -> Table:
    table = Table(title="Copies in memory")
    for heading in (
        "state",
        "step",
        "every",
        "of training",
        "waited",
        "cost (median of pairs)",
        "quarter to quarter",
        "memory",
    ):
        table.add_column(heading, justify="right")
    for size, result in results.items():
        costs = sorted(result["costs"])
        quarters = statistics.quantiles(costs, n=4) if len(costs) > 1 else [costs[0]] * 3
        table.add_row(
            f"{size} MB",
            f"{result['step_s'] * 1e3:.1f} ms",
            "none" if result["off"] else f"{result['interval_s']:.1f} s",
            f"{result['cost_of_copy_s'] * 1e3:.1f} ms",
            f"{statistics.median(result['waited']):.2%}",
            f"{quarters[1]:+.2%}",
            f"{quarters[0]:+.2%} to {quarters[2]:+.2%}",
            f"{result['memory_bytes'] / 1e6:.0f} MB",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", type=float, nargs="+", default=[10, 100, 400])
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--period", type=float, default=8.0, help="seconds")
    arguments = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    for size in arguments.sizes:
        with tempfile.TemporaryDirectory(prefix="memory-tier-") as folder:
            results[f"{size:g}"] = measured(size, arguments.pairs, arguments.period, Path(folder))
        Console(width=160).print(table_of(results))
        harness.write("memory_tier", results)


if __name__ == "__main__":
    main()
