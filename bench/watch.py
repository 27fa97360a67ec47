"""Measures what watching costs: the looks at what the loop reaches, and a step once the watch is over.

Run with `python -m bench.watch` (a minute); prints a table. For each example: how many looks there were, the longest
one and all together in milliseconds of processor time, as a share of the training time in which they took place, and
`step_done` itself (median, microseconds) while the watch waits for its next look and after it is over.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import harness, peer
from supervisor.protocol.wire.launch import Interval, Launch, without_launch_variables
from worker.checks.watch.look_times import SETTLED_STEPS

EXAMPLES = {"digits": "2", "torch_digits": None, "charlm": "2"}
STEPS = SETTLED_STEPS + 400
"""Of one run."""


def measure(example: str, folder: Path) -> dict[str, Any]:
    """What `bench.watch_job` prints in a process of its own."""
    replicas = EXAMPLES[example]
    launch = Launch(
        deterministic=True,
        checkpoint_dir=folder,
        checkpoint_interval=Interval(steps=500),
        replicas=int(replicas) if replicas else None,
        strategy="mirrored" if replicas else None,
    )
    environment = {**without_launch_variables(os.environ), **launch.to_environment(), "STEPS": str(STEPS)}
    environment |= {"PYTHONPATH": str(harness.ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    python = str(peer.binaries(peer.TORCH) / "python") if "torch" in example else sys.executable
    ran = subprocess.run(
        [python, "-m", "bench.watch_job", example],
        cwd=harness.ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise SystemExit(f"{example} ended with {ran.returncode}: {ran.stderr[-2000:]}")
    report: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return report


def main() -> None:
    """Prints the table."""
    print("| example | looks | longest | all of them | of the training | a step between looks |")
    print("|---|---|---|---|---|---|")
    for example in EXAMPLES:
        with tempfile.TemporaryDirectory() as folder:
            report = measure(example, Path(folder) / "checkpoints")
        waiting = "" if report["waiting_us"] is None else f"{report['waiting_us']:.0f} µs"
        print(
            f"| {example} | {report['looks']} | {report['longest_ms']:.0f} ms | {report['all_ms']:.0f} ms | "
            f"{report['all_ms'] / 10 / report['trained_s']:.2f} % of {report['trained_s']:.0f} s | {waiting} |"
        )


if __name__ == "__main__":
    main()
