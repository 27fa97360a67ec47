"""A network in JAX with Optax: a key that is split in each step, parameters and the optimizer's state in a file,
the key and a moving average of the parameters in run.state."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from worker.files import FilesRun, prepare

prepare(1)
key = jax.random.key(0)
key, k1, k2, k3 = jax.random.split(key, 4)
params = {"w1": jax.random.normal(k1, (5, 8)) * 0.4, "w2": jax.random.normal(k2, (8, 1)) * 0.4}
optimizer = optax.adam(1e-2)
opt_state = optimizer.init(params)
x = jax.random.normal(k3, (40, 5))
y = jnp.sum(x**2, axis=1, keepdims=True)


def loss_fn(params, key, x, y):
    hidden = jax.nn.relu(x @ params["w1"])
    mask = jax.random.bernoulli(key, 0.8, hidden.shape)
    return jnp.mean((jnp.where(mask, hidden / 0.8, 0) @ params["w2"] - y) ** 2)


@jax.jit
def update(params, opt_state, batch_key, dropout_key, x, y):
    rows = jax.random.randint(batch_key, (8,), 0, len(x))
    loss, grads = jax.value_and_grad(loss_fn)(params, dropout_key, x[rows], y[rows])
    updates, opt_state = optimizer.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


class TrainState:
    versions = {"jax": jax.__version__}
    topology = {}

    def write(self, folder):
        arrays = jax.tree.leaves((params, opt_state))
        np.savez(folder / "state.npz", *[np.asarray(array) for array in arrays])

    def read(self, folder):
        global params, opt_state
        with np.load(folder / "state.npz") as saved:
            leaves = [jnp.asarray(saved[name]) for name in saved.files]
        params, opt_state = jax.tree.unflatten(jax.tree.structure((params, opt_state)), leaves)

    def read_foreign(self, prefix):
        raise NotImplementedError


with FilesRun(TrainState(), directory="checkpoints", total_steps=30, state={"key": key, "mean": params}) as run:
    while not run.reached:
        run.state["key"], batch_key, dropout_key = jax.random.split(run.state["key"], 3)
        params, opt_state, loss = update(params, opt_state, batch_key, dropout_key, x, y)
        run.state["mean"] = jax.tree.map(lambda mean, now: 0.9 * mean + 0.1 * now, run.state["mean"], params)
        run.step_done(epoch=0, batch=run.step + 1, loss=float(loss))

print(f"weights {float(params['w1'].sum()):.7f} {float(run.state['mean']['w2'].sum()):.7f}")
