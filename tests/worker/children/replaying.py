"""Trains a small model in FOLDER for STEPS steps, with replays: `replaying KIND FOLDER STEPS [OPTION=VALUE ...]`.

KIND is tensorflow, replicas (two) or torch. Prints each step, and at the end what was replayed and a hash of the state.
Options: flip=weight or flip=gradient flips a bit in the first training of one step of every five; hold=N stands still
in the N-th step that is trained a second time, leave=N leaves the loop there; pause=S makes steps longer;
loop=enumerate counts by itself; epoch=N batches in an epoch; carry=1 carries a value that no checkpoint has; workers=N
loader processes.
"""

import hashlib
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from supervisor.protocol.wire.messages import FromWorker, Replayed
from worker.process.reporting import Reporter
from worker.process.startup import current_attempt

KIND, FOLDER, STEPS = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
OPTIONS = dict(each.split("=") for each in sys.argv[4:])
EPOCH = int(OPTIONS.get("epoch", "100"))
BATCH = 8


class Recording:
    """Keeps what is reported of replays, and passes all on."""

    def __init__(self, reporter: Reporter) -> None:
        self.replays: list[Replayed] = []
        self._reporter = reporter
        self.send_progress, self.show_message, self.drain = (
            reporter.send_progress, reporter.show_message, reporter.drain,
        )  # fmt: skip

    def send_message(self, message: FromWorker) -> None:
        if isinstance(message, Replayed):
            self.replays.append(message)
        self._reporter.send_message(message)


class Watcher:
    """Says which steps are trained a second time, and spoils the first time."""

    def __init__(self) -> None:
        self._newest = self._again = 0
        self._numbers = random.Random(7)
        self.is_flip = self.leaves = False
        self._flip_at = -1

    def begin(self, step: int) -> None:
        """The step after `step` begins."""
        is_again = step < self._newest
        self._again += is_again
        self._newest = max(self._newest, step + 1)
        if step % 5 == 0 and not is_again:
            self._flip_at = step + self._numbers.randrange(5)
        self.is_flip = not is_again and "flip" in OPTIONS and step == self._flip_at
        print(f"{'again' if is_again else 'step'} {step + 1}", flush=True)
        self.leaves = is_again and self._again == int(OPTIONS.get("leave", "0"))
        time.sleep(float(OPTIONS.get("pause", "0")))
        if is_again and self._again == int(OPTIONS.get("hold", "0")):
            time.sleep(600)

    def flipped(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A copy with one of its bits flipped: one that rounding does not undo, and that does not make it infinite."""
        bits = np.array(values, np.float32).reshape(-1).view(np.uint32)
        order = np.argsort(np.abs(values).reshape(-1))
        place = int(order[self._numbers.randrange(len(order) // 2, len(order))])
        bits[place] ^= np.uint32(1 << self._numbers.choice([*range(13, 23), 31]))
        return bits.view(np.float32).reshape(values.shape)


def loop_over(batches: Iterable[Any]) -> Iterable[Any]:
    return (each for _, each in enumerate(batches)) if OPTIONS.get("loop") == "enumerate" else batches


def examples() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    numbers = np.random.default_rng(1)
    return numbers.normal(size=(EPOCH * BATCH, 6)).astype("float32"), numbers.integers(0, 4, EPOCH * BATCH)


def train_tensorflow(watcher: Watcher) -> list[bytes]:
    import worker

    strategy = worker.strategy(replicas=2 if KIND == "replicas" else 1)
    import tensorflow as tf

    tf.keras.utils.set_random_seed(3)
    layers = tf.keras.layers
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.Input((6,)),
                layers.Dense(16, "relu"),
                layers.BatchNormalization(),
                layers.Dropout(0.5),
                layers.Dense(4),
            ]
        )
        optimizer = tf.keras.optimizers.Adam(tf.keras.optimizers.schedules.CosineDecay(1e-2, 1000))
        loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    @tf.function(autograph=False)  # there is nothing to convert
    def step(inputs: Any, labels: Any, spoil: Any) -> Any:
        def on_replica(inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                noisy = inputs + 0.1 * tf.random.normal(tf.shape(inputs))
                loss = tf.nn.compute_average_loss(loss_of(labels, model(noisy, training=True)))
            gradients = tape.gradient(loss, model.trainable_variables)
            gradients[0] += spoil
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.reduce("SUM", strategy.run(on_replica, args=(inputs, labels)), axis=None)

    data = worker.Examples(*examples(), batch_size=BATCH, seed=2)
    tracked = tf.train.Checkpoint(model=model, optimizer=optimizer)
    weight = model.layers[0].kernel
    best = 1e9
    with worker.Run(
        tracked, strategy=strategy, total_steps=STEPS, state={"losses": [], "noise": np.random.default_rng(4)},
        leave_out=[watcher, strategy] + ([] if "carry" in OPTIONS else ["best"]),
    ) as run:  # fmt: skip
        for inputs, labels in loop_over(run.batches(data)):
            watcher.begin(run.step)
            if watcher.leaves:
                break
            if watcher.is_flip and OPTIONS["flip"] == "weight":
                weight.assign(watcher.flipped(weight.numpy()))
            spoil = 0.0 if not watcher.is_flip else float(2.0 ** random.Random(run.step).randrange(-8, 8))
            loss = step(inputs, labels, tf.constant(spoil if OPTIONS.get("flip") == "gradient" else 0.0))
            best = min(best, float(loss))
            run.state["losses"] = [*run.state["losses"][-3:], float(loss) + run.state["noise"].normal()]
            run.step_done(loss=loss, best=best if "carry" in OPTIONS else 0.0)
    variables = [*model.variables, *optimizer.variables]
    values = [copy.numpy() for variable in variables for copy in getattr(variable.value, "values", [variable.value])]
    print(f"ended {run.step}", flush=True)
    return [*(value.tobytes() for value in values), json.dumps(run.state["losses"]).encode()]


def train_torch(watcher: Watcher) -> list[bytes]:
    import torch
    from torch import nn

    from worker import torch as stepkeeper

    stepkeeper.prepare(seed=3)
    torch.set_num_threads(1)
    inputs, labels = map(torch.from_numpy, examples())
    data = torch.utils.data.TensorDataset(inputs, labels)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    scaler = torch.amp.GradScaler("cpu")
    noise = torch.Generator().manual_seed(9)
    workers = int(OPTIONS.get("workers", "0"))
    with stepkeeper.Run(
        model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, generators={"noise": noise},
        total_steps=STEPS, state={"losses": []}, leave_out=[watcher, "first_group"],
    ) as run:  # fmt: skip
        first_group = optimizer.param_groups[0]
        batches = run.batches(data, batch_size=BATCH, seed=2, num_workers=workers)
        for inputs, labels in loop_over(batches):
            watcher.begin(run.step)
            if watcher.leaves:
                break
            if watcher.is_flip and OPTIONS["flip"] == "weight":
                with torch.no_grad():
                    model[0].weight.copy_(torch.from_numpy(watcher.flipped(model[0].weight.numpy())))
            optimizer.zero_grad()
            noisy = inputs + 0.1 * torch.randn(inputs.shape, generator=noise)
            loss = nn.functional.cross_entropy(model(noisy), labels)
            scaler.scale(loss).backward()
            if watcher.is_flip and OPTIONS["flip"] == "gradient":
                model[0].weight.grad.copy_(torch.from_numpy(watcher.flipped(model[0].weight.grad.numpy())))
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            assert optimizer.param_groups[0] is first_group
            run.state["losses"] = [*run.state["losses"][-3:], loss.item()]
            run.step_done(loss=loss.item())
    tensors = [*model.state_dict().values(), torch.get_rng_state(), noise.get_state()]
    tensors += [value for state in optimizer.state_dict()["state"].values() for value in state.values()]
    plain = f"{scheduler.state_dict()} {run.state['losses']}"
    print(f"ended {run.step}", flush=True)
    return [*(tensor.numpy().tobytes() for tensor in tensors), plain.encode()]


def main() -> None:
    reporter = Recording(current_attempt().reporter)
    current_attempt().reporter = reporter
    train: Callable[[Watcher], list[bytes]] = train_torch if KIND == "torch" else train_tensorflow
    digest = hashlib.sha256()
    for part in train(Watcher()):
        digest.update(part)
    compared = [replay for replay in reporter.replays if replay.steps]
    found = {
        "replayed_steps": sum(each.steps for each in compared),
        "intervals": len(compared),
        "differences": sum(bool(each.differing) for each in compared),
        "problems": [replay.problem for replay in reporter.replays if replay.problem is not None],
        "hash": digest.hexdigest(),
        "pid": os.getpid(),
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
