"""A policy gradient for a bandit in JAX, with a running baseline as a number of the loop."""

import jax
import jax.numpy as jnp
import numpy as np

from worker.files import FilesRun, prepare

prepare(3)
n_arms, n_steps, lr = 5, 30, 0.1
means = np.linspace(0.0, 1.0, n_arms)


class Agent:
    versions = {"jax": jax.__version__}
    topology = {}
    logits = jnp.zeros(n_arms)

    def write(self, folder):
        np.save(folder / "logits.npy", np.asarray(self.logits))

    def read(self, folder):
        self.logits = jnp.asarray(np.load(folder / "logits.npy"))

    def read_foreign(self, prefix):
        raise NotImplementedError


@jax.jit
def policy_gradient(logits, action, advantage):
    return jax.grad(lambda logits: -advantage * jax.nn.log_softmax(logits)[action])(logits)


agent = Agent()
root = jax.random.PRNGKey(7)
with FilesRun(agent, directory="checkpoints", state={"baseline": 0.0}) as run:
    for step in range(run.step, n_steps):
        action = int(jax.random.categorical(jax.random.fold_in(root, step), agent.logits))
        reward = float(np.random.normal(means[action], 0.1))
        agent.logits = agent.logits - lr * policy_gradient(agent.logits, action, reward - run.state["baseline"])
        run.state["baseline"] += 0.1 * (reward - run.state["baseline"])
        run.step_done(epoch=0, batch=step + 1, reward=reward)

print(f"baseline {run.state['baseline']:.9f}, logits {np.asarray(agent.logits).round(6).tolist()}")
