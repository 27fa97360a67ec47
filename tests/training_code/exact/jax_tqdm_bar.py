"""Logistic regression in JAX under a tqdm bar, which shows the loss and the time that a step takes."""

import time

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from worker.files import FilesRun, prepare

prepare(4)
hyperparameters = [["learning_rate", 0.2], ["l2", 1e-3], ["layers", [[6, 1]]]]
config = dict(hyperparameters)
X = np.random.normal(size=(60, 6)).astype(np.float32)
y = (X.sum(axis=1) > 0).astype(np.float32)


class Weights:
    versions = {"jax": jax.__version__}
    topology = {}

    def __init__(self):
        self.w = jnp.zeros(6)

    def write(self, folder):
        np.save(folder / "w.npy", np.asarray(self.w))

    def read(self, folder):
        self.w = jnp.asarray(np.load(folder / "w.npy"))

    def read_foreign(self, prefix):
        raise NotImplementedError


@jax.jit
def step(w, x, y):
    def loss_fn(w):
        logits = x @ w
        return jnp.mean(jnp.logaddexp(0.0, logits) - y * logits) + config["l2"] * jnp.sum(w**2)

    loss, grad = jax.value_and_grad(loss_fn)(w)
    return w - config["learning_rate"] * grad, loss


weights = Weights()
total = 36
with FilesRun(weights, directory="checkpoints") as run:
    with tqdm(total=total, initial=run.step, desc="training") as pbar:
        for it in range(run.step, total):
            began = time.perf_counter()
            rows = np.random.randint(0, len(X), 10)
            weights.w, loss = step(weights.w, X[rows], y[rows])
            took = time.perf_counter() - began
            pbar.set_postfix(loss=float(loss), ms=1000 * took)
            pbar.update(1)
            run.step_done(epoch=0, batch=it + 1, loss=float(loss))

print(f"weights {float(weights.w.sum()):.7f}")
