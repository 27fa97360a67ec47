"""Trains with every kind of state that a checkpoint has to hold, undisturbed and interrupted, and prints the results.

Each training is done in one go; what it had written at a moment between two checkpoints is what it would leave if it
died there. That is gone on with by fresh objects with other seeds, as another process would make them.
FOLDER TRAINING ...
"""

import hashlib
import json
import random
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import worker

strategy = worker.strategy("multiworker", deterministic=True)

import tensorflow as tf  # noqa: E402 - the strategy comes first

from worker.data import collectives  # noqa: E402
from worker.internals.keras_internals import global_generator  # noqa: E402
from worker.state import extra_state, random_generators  # noqa: E402

keras, optimizers = tf.keras, tf.keras.optimizers
STEPS, EVERY, ABANDONED = 12, 5, 8
NUMBERS = np.random.default_rng(0)
INPUTS = NUMBERS.normal(size=(32, 8)).astype("float32")
TARGETS = NUMBERS.normal(size=(32, 4)).astype("float32")


@dataclass
class Parts:
    """One training. `states`: what has to be restored, by kind; `host`, `device`: noise from either."""

    tracked: tf.train.Checkpoint
    states: dict[str, Callable[[], Any]]
    own: tuple[Any, ...] = ()
    host: Callable[[], float] = lambda: 0.0
    device: Callable[[], Any] = lambda: 0.0
    scaled: Callable[[Any], Any] = field(default=lambda loss: loss)


def built(optimizer: Any, *layers: Any) -> tf.train.Checkpoint:
    model = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(4, dtype="float32")])
    return tf.train.Checkpoint(model=model, optimizer=optimizer)


class Noisy(keras.layers.Layer):
    """A custom layer with a generator of its own."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seeds = keras.random.SeedGenerator(seed)

    def call(self, inputs: Any) -> Any:
        return inputs + keras.random.normal(tf.shape(inputs), seed=self.seeds)


def draws(seed: int) -> Parts:
    """Every kind of generator at once: each adds to the model's inputs."""
    random.seed(seed)
    np.random.seed(seed)
    apart = worker.replica_streams(keras.Sequential([keras.Input((8,)), keras.layers.Dropout(0.5, seed=seed)]))
    layers = keras.layers.Dropout(0.5, seed=seed), keras.Sequential([keras.Input((8,)), Noisy(seed)]), apart
    tracked = built(optimizers.Adam(1e-2), *layers)
    tracked.generator = tf.random.Generator.from_seed(seed)
    seeds, numbers = keras.random.SeedGenerator(seed), np.random.default_rng(seed)
    old, python = np.random.RandomState(seed), random.Random(seed)
    return Parts(
        tracked,
        {
            "dropout": lambda: layers[0].seed_generator.state,
            "a custom layer's generator": lambda: layers[1].layers[0].seeds.state,
            "replica_streams": lambda: apart.layers[0].seed_generator.state,
            "tf.random.Generator": lambda: tracked.generator.state,
            "Python": random.getstate,
            "NumPy": lambda: random_generators.as_json(np.random.get_state(legacy=False)),
            "an own Keras SeedGenerator": lambda: seeds.state,
            "an own NumPy Generator": lambda: random_generators.as_json(numbers.bit_generator.state),
            "an own NumPy RandomState": lambda: random_generators.as_json(old.get_state(legacy=False)),
            "an own Python Random": python.getstate,
        },
        own=(seeds, numbers, old, python),
        host=lambda: random.gauss() + np.random.normal() + numbers.normal() + old.normal() + python.gauss(),
        device=lambda: tracked.generator.normal([8]) + keras.random.normal([8], seed=seeds),
    )


def global_seed(seed: int) -> Parts:
    """Draws by keras.random without a seed."""
    tracked = built(optimizers.SGD(1e-2))
    states = {"Keras' global generator": lambda: global_generator().state}
    return Parts(tracked, states, device=lambda: keras.random.normal([8]))


def moving_average(seed: int) -> Parts:
    tracked = built(optimizers.AdamW(1e-2, use_ema=True))
    return Parts(tracked, {"EMA weights": lambda: tracked.optimizer._model_variables_moving_average})


def loss_scaling(seed: int) -> Parts:
    keras.mixed_precision.set_global_policy("mixed_float16")
    hidden = keras.layers.Dense(8)
    keras.mixed_precision.set_global_policy("float32")
    scaling = optimizers.LossScaleOptimizer(optimizers.Adam(1e-2), initial_scale=4.0, dynamic_growth_steps=3)
    states = {"loss scaling": lambda: [scaling.dynamic_scale, scaling.step_counter]}
    return Parts(built(scaling, hidden), states, scaled=scaling.scale_loss)


def accumulation(seed: int) -> Parts:
    tracked = built(optimizers.Adam(1e-2, gradient_accumulation_steps=3))
    return Parts(tracked, {"accumulated gradients": lambda: tracked.optimizer._accumulated_gradients})


TRAININGS: Mapping[str, Callable[[int], Parts]] = {
    "draws": draws, "global_seed": global_seed, "moving_average": moving_average, "loss_scaling": loss_scaling,
    "accumulation": accumulation,
}  # fmt: skip


def make(training: str, seed: int) -> Parts:
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        parts = TRAININGS[training](seed)
        parts.tracked.optimizer.build(parts.tracked.model.trainable_variables)
        extra_state.create_global_seed(strategy)
    return parts


def digest(value: Any) -> str:
    """The values of a state: of a variable on every replica, or of a generator on the host."""
    found = hashlib.sha256()
    for each in value if isinstance(value, list) else [value]:
        inner = each.value if isinstance(each, keras.Variable) else each
        if isinstance(inner, tf.Variable):
            for copy in getattr(inner, "values", [inner]):
                found.update(copy.numpy().tobytes())
        else:
            found.update(json.dumps(inner).encode())
    return found.hexdigest()[:16]


def digests(parts: Parts) -> dict[str, str]:
    return {kind: digest(state()) for kind, state in parts.states.items()}


def step_of(parts: Parts) -> Any:
    model, optimizer = parts.tracked.model, parts.tracked.optimizer

    def on_replica(inputs: Any, targets: Any, noise: Any) -> Any:
        with tf.GradientTape() as tape:
            found = model(inputs + noise + parts.device(), training=True)
            loss = tf.reduce_mean(tf.square(found - targets))
            scaled = parts.scaled(loss)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(scaled, variables), variables, strict=True))
        return loss

    return tf.function(lambda *given: strategy.run(on_replica, args=given), autograph=False)


def train(parts: Parts, folder: Path, left: Path | None = None) -> dict[str, dict[str, str]]:
    """The states before a restore and after it, at the first save, and at the end. `left`: gets what the folder holds
    between the saves."""
    found = {"made": digests(parts)}
    with worker.Run(
        parts.tracked, strategy=strategy, total_steps=STEPS, directory=folder, interval=f"{EVERY} steps",
        generators=parts.own, strict=True, leave_out=["found"],
    ) as run:  # fmt: skip
        found["begun"] = digests(parts)
        step = step_of(parts)
        for inputs, targets in run.batches(worker.Examples(INPUTS, TARGETS, batch_size=8)):
            run.step_done(loss=step(inputs, targets, tf.constant(parts.host(), tf.float32)))
            if run.step == EVERY:
                found["saved"] = digests(parts)
            if run.step == ABANDONED and left is not None:
                run._checkpoints._wait_for_save()
                if rank == 0:
                    shutil.copytree(folder, left, symlinks=True)
    found["ended"] = digests(parts) | {"weights": digest([*parts.tracked.model.variables])}
    return found


def both(training: str, folder: Path) -> dict[str, Any]:
    undisturbed = train(make(training, 1), folder / "whole", folder / "broken")
    return {"undisturbed": undisturbed, "resumed": train(make(training, 99), folder / "broken")}


together = collectives.gang_of(strategy)
rank = 0 if together is None else together.rank
base = Path(sys.argv[1])
report = {training: both(training, base / training) for training in sys.argv[2:]}
(base / f"report-{rank}.json").write_text(json.dumps(report))
