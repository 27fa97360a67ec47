"""Logistic regression with counters in run.state, clocks, and a line of progress every so often."""

import time

import numpy as np

from worker.files import FilesRun, prepare

prepare(17)
x = np.random.randn(200, 5)
y = (x @ np.arange(5.0) > 0).astype(float)


class Model:
    versions = {}
    topology = {}
    w = np.zeros(5)

    def write(self, folder):
        np.save(folder / "w.npy", self.w)

    def read(self, folder):
        self.w = np.load(folder / "w.npy")

    def read_foreign(self, prefix):
        raise NotImplementedError


model = Model()
started = time.time()
last_print = time.perf_counter()
with FilesRun(model, directory="checkpoints", total_steps=36, state={"n": 0, "mistakes": [], "by_class": {}}) as run:
    while not run.reached:
        step_started = time.time()
        rows = np.random.randint(0, len(x), 8)
        p = 1 / (1 + np.exp(-x[rows] @ model.w))
        wrong = int(((p > 0.5) != y[rows]).sum())
        run.state["n"] += len(rows)
        run.state["mistakes"].append(wrong)
        label = int(y[rows].sum())
        run.state["by_class"][label] = run.state["by_class"].get(label, 0) + 1
        model.w += 0.3 * x[rows].T @ (y[rows] - p) / len(rows)
        elapsed = time.time() - step_started
        if time.perf_counter() - last_print > 10:
            print(f"{run.step} steps in {time.time() - started:.0f} s, {elapsed:.3f} s each")
            last_print = time.perf_counter()
        run.step_done(epoch=0, batch=run.step + 1, wrong=wrong)

print(run.state["n"], sum(run.state["mistakes"]), sorted(run.state["by_class"].items()), f"{model.w.sum():.12f}")
