"""A VAE in JAX with optax: a NamedTuple of state, keys by fold_in, a beta that anneals."""

import pickle
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from worker.files import FilesRun, prepare

prepare(4)
data = np.random.default_rng(0).normal(size=(40, 5)).astype("float32")
optimizer = optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 0.02, 5, 30))


class TrainState(NamedTuple):
    params: dict
    opt_state: tuple
    rng: jax.Array
    step: int


def init(key):
    k1, k2 = jax.random.split(key)
    params = {"enc": jax.random.normal(k1, (5, 4)) * 0.3, "dec": jax.random.normal(k2, (2, 5)) * 0.3}
    return TrainState(params, optimizer.init(params), key, 0)


def loss_fn(params, x, key, beta):
    h = x @ params["enc"]
    mu, logvar = h[:, :2], h[:, 2:]
    z = mu + jnp.exp(0.5 * logvar) * jax.random.normal(key, mu.shape)
    kl = -0.5 * jnp.mean(1 + logvar - mu**2 - jnp.exp(logvar))
    return jnp.mean((z @ params["dec"] - x) ** 2) + beta * kl


@jax.jit
def update(state, x, beta):
    rng, key = jax.random.split(state.rng)
    loss, grads = jax.value_and_grad(loss_fn)(state.params, x, key, beta)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    return TrainState(optax.apply_updates(state.params, updates), opt_state, rng, state.step + 1), loss


class Files:
    versions = {"jax": jax.__version__}
    topology = {}

    def __init__(self):
        self.state = init(jax.random.PRNGKey(0))

    def write(self, folder):
        (folder / "params.pkl").write_bytes(pickle.dumps(jax.device_get(self.state)))

    def read(self, folder):
        self.state = pickle.loads((folder / "params.pkl").read_bytes())


files = Files()
with FilesRun(files, state={"beta": 0.0, "losses": []}, directory="checkpoints") as run:
    for epoch in run.epochs(5):
        for i in run.order(np.random.permutation(40), 8):
            files.state, loss = update(files.state, data[i], run.state["beta"])
            run.state["beta"] = min(1.0, run.state["beta"] + 0.05)
            run.state["losses"].append(float(loss))
            run.step_done(loss=float(loss))
print(f"{float(files.state.params['enc'].sum()):.9f} {int(files.state.step)} {run.state['beta']:.3f}")
