"""Measures how soon all ranks of a gang train on after one of them dies, under a real Slurm on this machine.

Run with `python -m bench.gang` as root, with Debian's Slurm (docs/slurm.md). The worker of rank 1 is killed with
SIGKILL; what counts is the time until both ranks have done a step beyond the last one before. stepkeeper's job has the
default `standby = auto`: it is killed once the standbys of both ranks are ready (about 20 s after the first step), and
every other job after as many steps; `standby = off` is the same job without them. Beside stepkeeper, the same model
under TensorFlow's own checkpoints: `srun` in a loop that waits until TensorFlow has noticed; the same with
`--kill-on-bad-exit=1`, so that Slurm ends the step at the first exit; and a job that is queued again. Prints a table
and writes bench/results/gang.json. About six minutes a round, four without the last one (`--without-requeue`).
"""

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import harness
from bench.harness import ROOT
from tests.reading import whole_lines
from tests.slurm.cluster import Cluster, SlurmJob, why_not_here
from tests.slurm.jobs import Submission

JOB = ROOT / "bench" / "gang_job.py"
NODES = 2
TRAINED = 200  # steps before the kill: 20 s at least, in which standbys have loaded
PATIENCE_S = 400.0
SRUN = (
    f"srun --nodes={NODES} --ntasks={NODES} --ntasks-per-node=1 --kill-on-bad-exit={{kill}} "
    f"{sys.executable} {JOB} {{folder}} plain"
)


@dataclass(frozen=True)
class System:
    """`script`: of the batch job; None: deploy/slurm/train.sbatch, with this `standby`."""

    name: str
    script: str | None = None
    standby: str = "off"


REQUEUED = "queued again"
LOOP = "until {srun}; do :; done"
SYSTEMS = (
    System("stepkeeper", standby="auto"),
    System("stepkeeper, standby = off"),
    System("srun in a loop, TensorFlow notices", LOOP.format(srun=SRUN.format(kill=0, folder="{folder}"))),
    System("srun in a loop, --kill-on-bad-exit=1", LOOP.format(srun=SRUN.format(kill=1, folder="{folder}"))),
    System(REQUEUED, SRUN.format(kill=1, folder="{folder}") + " || scontrol requeue $SLURM_JOB_ID"),
)


def begin(system: System, cluster: Cluster, folder: Path) -> SlurmJob:
    """Queues the job; returns once all ranks train, and may be killed."""
    job = submit(system, cluster, folder)
    job.until(lambda: all(step and step[-1][1] >= TRAINED for step in steps(folder)), "all train", PATIENCE_S)
    if system.standby != "off":
        logs = cluster.shared / f"stepkeeper-{job.id}"

        def waits() -> bool:
            """One was ready for the first attempt, or none; and another one is beside each worker."""
            texts = [log.read_text(errors="replace") for log in logs.glob("*/supervisord.log")]
            latest = [
                max(text.rfind(f'"standby.{what}"') for what in ("spawned", "dropped", "exited")) for text in texts
            ]
            return len(texts) == NODES and all(
                text.rfind('"standby.ready"') > max(last, text.rfind('"worker.spawned"'))
                for text, last in zip(texts, latest, strict=True)
            )

        job.until(waits, "standbys are ready", PATIENCE_S)
    return job


def submit(system: System, cluster: Cluster, folder: Path) -> SlurmJob:
    if system.script is None:
        command = f"command={sys.executable} {JOB} {folder} stepkeeper\nstrategy=multiworker\n"
        gang = Submission(
            cluster, folder.name, "rendezvous_timeout=60", f'{command}environment=PYTHONPATH="{ROOT}"', system.standby
        )
        return gang.submit(f"--nodes={NODES}")
    folder.mkdir()
    script = folder / "job.sbatch"
    script.write_text(f"#!/bin/bash\n{system.script.format(folder=folder)}\n")
    return cluster.submit(
        f"--nodes={NODES}", "--ntasks-per-node=1", "--requeue", "--time=10", str(script), PYTHONPATH=str(ROOT)
    )


def steps(folder: Path) -> list[list[tuple[float, int, int]]]:
    """Of each rank: when a step was done, its number, and the process."""
    files = [folder / f"steps-{rank}.jsonl" for rank in range(NODES)]
    return [[tuple(json.loads(line)) for line in whole_lines(file)] if file.exists() else [] for file in files]


def measure(system: System, cluster: Cluster, name: str) -> tuple[float, int]:
    """Seconds from the kill until all ranks do new steps, and how many steps were done again."""
    folder = cluster.shared / name
    job = begin(system, cluster, folder)
    killed_at = time.time()
    node = next(node for node in reversed(cluster.nodes) if node.find(JOB.name))  # Slurm chooses which two it takes
    if not node.kill_own(steps(folder)[-1][-1][2]):  # not its standby
        raise SystemExit("there was no worker to kill")
    time.sleep(0.5)  # a step that was being done
    reached = max(step[-1][1] for step in steps(folder))
    begun = [step[-1][2] for step in steps(folder)]  # each node counts its own pids: two ranks may have the same

    def since() -> list[list[tuple[float, int]]]:
        return [
            [(at, step) for at, step, pid in story if pid != old]
            for story, old in zip(steps(folder), begun, strict=True)
        ]

    def again() -> float | None:
        firsts = [next((at for at, step in story if step > reached and at > killed_at), None) for story in since()]
        return max(firsts) if all(first is not None for first in firsts) else None  # type: ignore[type-var]

    resumed_at = job.until(again, "all train on", PATIENCE_S)
    resumed_from = min(step for story in since() for _, step in story)
    cluster.run("scancel", "--signal=KILL", "--full", job.id, check=False)
    cluster.run("scancel", job.id, check=False)
    job.until(lambda: not cluster.leftovers(), "nothing runs on any node", PATIENCE_S)
    return resumed_at - killed_at, reached - resumed_from + 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--without-requeue", action="store_true", help=f"leave out '{REQUEUED}', which takes minutes")
    options = parser.parse_args()
    systems = [system for system in SYSTEMS if not (options.without_requeue and system.name == REQUEUED)]
    if (why := why_not_here()) is not None:
        raise SystemExit(why)
    harness.compiled()
    times: dict[str, list[float]] = {system.name: [] for system in systems}
    repeated: dict[str, list[int]] = {system.name: [] for system in systems}
    cluster = Cluster().start()
    try:
        for number in range(options.rounds):
            for index, system in enumerate(systems):
                seconds, steps_again = measure(system, cluster, f"round-{number}-{index}")
                print(f"{system.name}: {seconds:.1f} s, {steps_again} steps again", file=sys.stderr)
                times[system.name].append(seconds)
                repeated[system.name].append(steps_again)
    finally:
        cluster.stop()
    table = Table("death of a rank to new steps of all", "seconds", "of stepkeeper's", "steps done again")
    ours = statistics.median(times[systems[0].name])
    for name, spans in times.items():
        span = f"{statistics.median(spans):.1f} ({min(spans):.1f} to {max(spans):.1f})"
        table.add_row(name, span, f"{statistics.median(spans) / ours:.2f}", str(statistics.median(repeated[name])))
    Console(width=120).print(table)
    harness.write("gang", {"seconds": times, "steps_again": repeated})


if __name__ == "__main__":
    main()
