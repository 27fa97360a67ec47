"""Measures what replays cost, what they find, and whether they cry wolf (docs/replay.md).

Run with `python -m bench.replay` (two hours; `--false-alarms`, `--cost` and `--flips` pick); prints tables and writes
bench/results/replay.json. PyTorch runs in an environment of its own, which is installed at the first use.

cost: each example with `replay = 1%` and without, in turns, so that both meet the same load; as the ratio of their
times, and of their processor times. All files of the last checkpoint have to be the same. flips: jobs in which one bit
of a weight, or of a gradient, is flipped in the first training of each interval. false alarms: steps of the examples
that are trained twice, of which none may differ.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import harness, peer
from supervisor.protocol.checkpoints import manifest, selection
from supervisor.protocol.wire.launch import Interval, Launch, without_launch_variables

EXAMPLES = {"digits": 4000, "torch_digits": 15000, "charlm": 1500}
"""With the steps of one run of the cost: a ratio of runs of few seconds is known to some percent only."""
ALWAYS = 100.0  # times the training time: each interval between two saves is trained twice
SHARE = 0.01
EVERY = 50  # steps between two saves
EVERY_TWICE = 5  # where all steps are to be trained twice: an epoch of digits has 11 steps, and no interval crosses one


def run(example: str, folder: Path, replay: float | None, steps: int, every: int = EVERY) -> dict[str, Any]:
    """Trains an example to its end. Raises SystemExit if it fails."""
    replicas = {"digits": 2, "charlm": 2}.get(example)
    command = [_python(example), "-m", "bench.replay_job", example]
    return _run(command, folder, replay, every, {"STEPS": str(steps)}, replicas)


def flip(kind: str, what: str, folder: Path, steps: int) -> dict[str, Any]:
    """Trains the model of the tests, with one bit flipped in each interval of five steps."""
    command = [_python(kind), "-m", "tests.worker.children.replaying", kind, str(folder), str(steps), f"flip={what}"]
    return _run(command, folder, ALWAYS, 5, {}, None)


def _run(
    command: list[str], folder: Path, replay: float | None, every: int, more: Mapping[str, str], replicas: int | None
) -> dict[str, Any]:
    launch = Launch(
        replay=replay,
        deterministic=True,
        checkpoint_dir=folder,
        checkpoint_interval=Interval(steps=every),
        replicas=replicas,
        strategy="mirrored" if replicas else None,
    )
    environment = {**without_launch_variables(os.environ), **launch.to_environment(), **more}
    environment |= {"PYTHONPATH": str(harness.ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    environment |= {"XDG_STATE_HOME": str(folder.parent / "state")}
    ran = subprocess.run(command, cwd=harness.ROOT, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {ran.returncode}: {ran.stderr[-2000:]}")
    report: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return report


def _python(kind: str) -> str:
    return str(peer.binaries(peer.TORCH) / "python") if "torch" in kind else sys.executable


def digests(folder: Path) -> dict[str, str]:
    """The hash of each file of the newest checkpoint."""
    newest = selection.select_checkpoint(folder).path
    assert newest is not None
    return {file.name: file.hash for file in manifest.read_manifest(newest).files}


def measure_cost(example: str, folder: Path, rounds: int, steps: int) -> dict[str, Any]:
    """Runs with and without replays in turns."""
    runs: dict[str, list[dict[str, Any]]] = {"off": [], "on": []}
    same = True
    for number in range(rounds):
        made = {}
        for word in ("off", "on") if number % 2 else ("on", "off"):
            place = folder / f"{example}-{word}-{number}"
            runs[word].append(run(example, place, SHARE if word == "on" else None, steps))
            made[word] = digests(place)
        same = same and made["on"] == made["off"]
    ratios = {
        clock: [on[clock] / off[clock] for on, off in zip(runs["on"], runs["off"], strict=True)]
        for clock in ("wall_s", "cpu_s")
    }
    shares = [report["replay_s"] / (report["wall_s"] - report["replay_s"]) for report in runs["on"]]
    return {
        "example": example,
        "wall_ratio": ratios["wall_s"],
        "cpu_ratio": ratios["cpu_s"],
        "share": shares,
        "replayed_steps": [report["replayed_steps"] for report in runs["on"]],
        "differences": sum(len(report["differences"]) for report in runs["on"]),
        "same_bits": same,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--examples", nargs="+", default=list(EXAMPLES))
    parser.add_argument("--cost", type=int, default=3, metavar="ROUNDS")
    parser.add_argument("--flips", type=int, default=100, metavar="INTERVALS")
    parser.add_argument("--false-alarms", type=int, default=10_000, metavar="STEPS")
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": harness.machine(), "cost": [], "flips": [], "false_alarms": []}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for example in options.examples if options.false_alarms else ():
            steps = int(1.5 * options.false_alarms)  # no interval crosses an epoch's end, so not all are trained twice
            report = run(example, folder / f"{example}-alarms", ALWAYS, steps, EVERY_TWICE)
            results["false_alarms"].append({"example": example, **report})
            print(
                f"{example}: {report['replayed_steps']} steps replayed, {len(report['differences'])} differ", flush=True
            )
        for kind in ("tensorflow", "replicas", "torch") if options.flips else ():
            for what in ("weight", "gradient"):
                report = flip(kind, what, folder / f"{kind}-{what}", 5 * options.flips + 30)
                results["flips"].append({"kind": kind, "flipped": what, **report})
                print(f"{kind}, a bit in a {what}: {report['differences']} of {report['intervals']} found", flush=True)
        for example in options.examples if options.cost else ():
            cost = measure_cost(example, folder, options.cost, EXAMPLES[example])
            results["cost"].append(cost)
            print(
                f"{example}: {statistics.median(cost['wall_ratio']):.3f} times the time, "
                f"{statistics.median(cost['cpu_ratio']):.3f} times the processor time, "
                f"{100 * statistics.median(cost['share']):.2f} % in replays, same bits: {cost['same_bits']}",
                flush=True,
            )
    harness.write("replay", results)


if __name__ == "__main__":
    main()
