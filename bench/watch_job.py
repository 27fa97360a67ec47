"""Trains an example in this process and prints what its looks took, as JSON: `python -m bench.watch_job EXAMPLE`."""

import json
import runpy
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from worker.checks import loop_checks
from worker.checks.watch.step_watch import StepWatch

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def job(example: str) -> None:
    """Trains an example in this process and prints what its looks took."""
    looks: list[float] = []
    waiting: list[float] = []
    began = time.monotonic()

    class Timed(StepWatch):
        def look(self, *arguments: Any, **options: Any) -> Any:
            started = time.thread_time()
            result = super().look(*arguments, **options)
            took = time.thread_time() - started
            (looks if took > 2e-4 or self._times.looks != getattr(self, "_seen", 0) else waiting).append(took)
            self._seen = self._times.looks
            return result

    loop_checks.StepWatch = Timed  # type: ignore[attr-defined]
    if example == "charlm":
        from worker.__main__ import main as train

        train(["examples.charlm:training"])
    else:
        sys.argv = [example]
        runpy.run_path(str(EXAMPLES / f"{example}.py"), run_name="__main__")
    print(json.dumps({
        "looks": len(looks), "longest_ms": max(looks) * 1000, "all_ms": sum(looks) * 1000,
        "waiting_us": statistics.median(waiting) * 1e6 if waiting else None,
        "trained_s": time.monotonic() - began,
    }))  # fmt: skip


if __name__ == "__main__":
    job(sys.argv[1])
