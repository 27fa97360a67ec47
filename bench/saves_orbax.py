"""Orbax with JAX in an environment of its own: the same layers with Adam as a JAX program, saved asynchronously.

Run by bench/saves.py with that environment's Python, as a server: each line of stdin is a command, each answer a line
of JSON on stdout. Nothing of this project's but the shared measure is imported.
"""

import functools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from bench.saves_measure import Begun, measure, timed

BATCH, BYTES_OF_PARAMETER, LAYERS, KEPT = 16, 12, 4, 2


def manager_of(folder: Path, kept: int = KEPT) -> Any:
    options = ocp.CheckpointManagerOptions(max_to_keep=kept, enable_async_checkpointing=True)
    return ocp.CheckpointManager(folder, options=options)


def adam(state: Any, inputs: Any) -> Any:
    """One step; every array changes."""

    def loss_of(weights: Any) -> Any:
        values = inputs
        for kernel, bias in weights:
            values = values @ kernel + bias
        return jnp.mean(values**2)

    gradients = jax.grad(loss_of)(state["weights"])
    count = state["count"] + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradients)
    square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g**2, state["square"], gradients)
    rate = 1e-4 * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    weights = jax.tree.map(lambda w, m, s: w - rate * m / (jnp.sqrt(s) + 1e-7), state["weights"], mean, square)
    return {"weights": weights, "mean": mean, "square": square, "count": count}


class Trained:
    """The state, its step, and its manager."""

    def __init__(self, size_mb: float, folder: Path) -> None:
        width = int((size_mb * 1e6 / BYTES_OF_PARAMETER / LAYERS) ** 0.5)
        keys = jax.random.split(jax.random.key(0), LAYERS + 1)
        weights = [(jax.random.normal(key, (width, width)) / width**0.5, jnp.zeros(width)) for key in keys[1:]]
        zeros = functools.partial(jax.tree.map, jnp.zeros_like)
        self.state = {"weights": weights, "mean": zeros(weights), "square": zeros(weights), "count": jnp.zeros(())}
        self.inputs = jax.random.normal(keys[0], (BATCH, width))
        self.step = jax.jit(adam)
        self.manager = manager_of(folder)
        self.saved = 0

    def stepped(self) -> float:
        began = time.perf_counter()
        self.state = jax.block_until_ready(self.step(self.state, self.inputs))
        return time.perf_counter() - began

    def save(self) -> Begun:
        self.saved += 1
        began, ended = time.perf_counter(), [0.0]
        self.manager.save(self.saved, args=ocp.args.StandardSave(self.state))

        def over() -> bool:
            if not self.manager.is_saving_in_progress():
                ended[0] = ended[0] or time.perf_counter()
            return ended[0] > 0

        return Begun(over, lambda: ended[0] - began)

    def restore(self) -> None:
        self.manager.wait_until_finished()
        jax.block_until_ready(self.manager.restore(self.saved, args=ocp.args.StandardRestore(self.state)))


def main() -> None:
    trained = Trained(float(sys.argv[1]), Path(sys.argv[2]))
    for _ in range(5):
        trained.stepped()
    for command in sys.stdin:
        if command.strip() == "save":
            answer = measure(trained.stepped, trained.save)
        else:
            answer = {"restore_ms": timed(trained.restore) * 1000}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
