"""The best loss in `run.state`, with its initial value in `state=`; a draw behind the step."""

import numpy as np

from worker.files import FilesRun, prepare

prepare(35)
x = np.random.normal(size=(24, 4))
y = x @ np.arange(4.0)


class Linear:
    versions = {}
    topology = {}
    w = np.zeros(4)

    def write(self, folder):
        np.save(folder / "w.npy", self.w)

    def read(self, folder):
        self.w = np.load(folder / "w.npy")

    def read_foreign(self, prefix):
        raise NotImplementedError


model = Linear()
with FilesRun(model, directory="checkpoints", state={"best": float("inf")}) as run:
    for step in run.range(12):
        rows = np.random.choice(24, 6)
        error = x[rows] @ model.w - y[rows]
        loss = float((error**2).mean())
        if loss < run.state["best"]:
            run.state["best"] = loss
            model.w = model.w - 0.2 * x[rows].T @ error / len(rows)
        run.step_done(loss=loss)
        if step % 3 == 0:
            model.w = model.w + 0.01 * np.random.normal(size=4)

print(f"best {run.state['best']:.9f}, w {model.w.sum():.12f}")
