"""A functional network in JAX whose running statistics go through the step beside the parameters."""

import jax
import jax.numpy as jnp
import numpy as np

from worker.files import FilesRun, prepare

prepare(2)


class Model:
    versions = {"jax": jax.__version__}
    topology = {}

    def __init__(self, key):
        k1, k2 = jax.random.split(key)
        self.params = {"w1": jax.random.normal(k1, (4, 8)) * 0.5, "w2": jax.random.normal(k2, (8, 1)) * 0.5}
        self.batch_stats = {"mean": jnp.zeros(8), "var": jnp.ones(8)}

    def write(self, folder):
        np.savez(folder / "params.npz", **{name: np.asarray(value) for name, value in self.params.items()})

    def read(self, folder):
        with np.load(folder / "params.npz") as saved:
            self.params = {name: jnp.asarray(saved[name]) for name in saved.files}

    def read_foreign(self, prefix):
        raise NotImplementedError


def apply(params, stats, x):
    hidden = x @ params["w1"]
    new = {"mean": 0.9 * stats["mean"] + 0.1 * hidden.mean(0), "var": 0.9 * stats["var"] + 0.1 * hidden.var(0)}
    hidden = (hidden - hidden.mean(0)) / jnp.sqrt(hidden.var(0) + 1e-5)
    return jax.nn.relu(hidden) @ params["w2"], new


@jax.jit
def train_step(params, stats, x, y):
    def loss_fn(params):
        out, new = apply(params, stats, x)
        return jnp.mean((out - y) ** 2), new

    (loss, stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), stats, loss


model = Model(jax.random.PRNGKey(1))
X = np.random.normal(size=(48, 4)).astype(np.float32)
Y = np.abs(X).sum(axis=1, keepdims=True)
with FilesRun(model, directory="checkpoints", total_steps=30) as run:
    while not run.reached:
        idx = np.random.choice(len(X), 12, replace=False)
        model.params, model.batch_stats, loss = train_step(model.params, model.batch_stats, X[idx], Y[idx])
        run.step_done(epoch=0, batch=run.step + 1, loss=float(loss))

print(f"mean {float(model.batch_stats['mean'].sum()):.7f}, weights {float(model.params['w1'].sum()):.7f}")
