"""Saves a state of several workers after each step: FOLDER MEGABYTES SAVES. The chief writes how long each save took.

Nobody makes a step while a save is written, so that what is measured is the save. With GROUPS in the environment, each
worker joins the control group there that has its rank as its name.
"""

import json
import os
import sys
import time
from pathlib import Path

import worker

TENSOR_MB = 8
PATIENCE_S = 300.0


def main(folder: Path, megabytes: int, saves: int) -> None:
    strategy = worker.strategy("multiworker", directory=folder / "ckpt")
    import tensorflow as tf

    rank = strategy.cluster_resolver.task_id
    if (groups := os.environ.get("GROUPS")) is not None:
        Path(groups, str(rank), "cgroup.procs").write_text(str(os.getpid()))
    numbers = tf.random.Generator.from_seed(1)
    with strategy.scope():
        variables = [
            tf.Variable(numbers.normal([TENSOR_MB * 250, 1000 // 8 * 8])) for _ in range(megabytes // TENSOR_MB)
        ]
    tracked = tf.train.Checkpoint(variables=variables)
    with worker.Run(
        tracked, strategy=strategy, total_steps=saves + 1, directory=folder / "ckpt", interval="1 steps"
    ) as run:
        while not run.reached:
            began = time.perf_counter()
            run.step_done()
            stall_s = time.perf_counter() - began
            saved = folder / "ckpt" / f"step-{run.step:010}.a1"
            while not saved.exists():
                if time.perf_counter() - began > PATIENCE_S:
                    raise SystemExit(f"{saved} was not saved")
                time.sleep(0.002)
            took_s = time.perf_counter() - began
            if rank == 0:
                with (folder / "saves.jsonl").open("a") as file:
                    file.write(json.dumps([stall_s, took_s]) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
