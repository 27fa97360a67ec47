"""Optax: Adam with a cosine schedule, and a moving average of the parameters that `write` forgets."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax

from worker.files import FilesRun, prepare

prepare(3)
x = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
y = x.sum(1, keepdims=True)
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(0.1, 24)))


class TrainState:
    versions = {"jax": jax.__version__}
    topology = {}

    def __init__(self):
        self.params = {"w": jnp.zeros((4, 1)), "b": jnp.zeros(1)}
        self.opt_state = optimizer.init(self.params)
        self.ema = self.params

    def write(self, folder):
        (folder / "state.pkl").write_bytes(pickle.dumps(jax.device_get((self.params, self.opt_state))))

    def read(self, folder):
        self.params, self.opt_state = pickle.loads((folder / "state.pkl").read_bytes())

    def read_foreign(self, prefix):
        raise NotImplementedError


def loss_fn(params, features, targets):
    return jnp.mean((features @ params["w"] + params["b"] - targets) ** 2)


@jax.jit
def train_step(params, opt_state, features, targets):
    loss, gradients = jax.value_and_grad(loss_fn)(params, features, targets)
    updates, opt_state = optimizer.update(gradients, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


state = TrainState()
with FilesRun(state, directory="checkpoints") as run:
    for epoch in run.epochs(4):
        for i in run.order(np.random.permutation(48), 8):
            state.params, state.opt_state, loss = train_step(state.params, state.opt_state, x[i], y[i])
            state.ema = optax.incremental_update(state.params, state.ema, 0.1)
            run.step_done(loss=float(loss))

print(f"ema {np.asarray(state.ema['w']).ravel().tolist()}")
