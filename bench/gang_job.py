"""A small model over all nodes of an allocation: FOLDER SYSTEM. Writes a line with the time for each step done.

SYSTEM `stepkeeper` trains under `worker.Run`; `plain` as TensorFlow's tutorial has it: MultiWorkerMirroredStrategy,
CheckpointManager, a TF_CONFIG from Slurm's variables, and nothing that looks after it.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import worker  # a standby imports this and what follows ahead; a bare loop imports the same at each start

SAVE_EVERY = 10  # steps
STEP_S = 0.1
STEPS = 1_000_000


def cluster_of_slurm() -> str:
    """TF_CONFIG; another port in each step of the job, as the last one may still be taken."""
    names = subprocess.run(
        ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]], capture_output=True, text=True, check=True
    )
    port = 30000 + (37 * int(os.environ["SLURM_JOB_ID"]) + int(os.environ["SLURM_STEP_ID"])) % 2000
    workers = [f"{name}:{port}" for name in names.stdout.split()]
    task = {"type": "worker", "index": int(os.environ["SLURM_PROCID"])}
    return json.dumps({"cluster": {"worker": workers}, "task": task})


def main(folder: Path, system: str) -> None:
    if system == "plain":
        os.environ["TF_CONFIG"] = cluster_of_slurm()
    strategy = worker.strategy("multiworker")
    rank = strategy.cluster_resolver.task_id
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(10)])
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
        tracked = tf.train.Checkpoint(model=model, optimizer=optimizer, step=tf.Variable(0, dtype=tf.int64))

    @tf.function
    def step() -> Any:
        def on_replica() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(tf.ones((32, 64))) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.reduce("MEAN", strategy.run(on_replica), axis=None)

    log = (folder / f"steps-{rank}.jsonl").open("a", buffering=1)

    def done(number: int) -> None:
        log.write(json.dumps([time.time(), number, os.getpid()]) + "\n")
        time.sleep(STEP_S)

    if system == "stepkeeper":
        with worker.Run(
            tracked, strategy=strategy, total_steps=STEPS, directory=folder / "ckpt", interval=f"{SAVE_EVERY} steps"
        ) as run:
            while not run.reached:
                step()
                run.step_done()
                done(run.step)
        return
    own = folder / "ckpt" if rank == 0 else folder / f"ckpt-of-{rank}"  # all have to save; the others' is not used
    manager = tf.train.CheckpointManager(tracked, own, max_to_keep=3)
    tracked.restore(tf.train.latest_checkpoint(folder / "ckpt"))
    number = int(tracked.step.numpy())
    while number < STEPS:
        step()
        tracked.step.assign_add(1)
        number += 1
        if number % SAVE_EVERY == 0:
            manager.save()
        done(number)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
