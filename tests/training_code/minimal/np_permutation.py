"""Matrix factorization in NumPy: each epoch walks over the ratings in the order of a new permutation."""

import numpy as np

from worker.files import FilesRun, prepare

prepare(7)
rng = np.random.default_rng(7)
users, items, rank = 12, 9, 3
ratings = [(u, i, float((u * i) % 5)) for u in range(users) for i in range(items) if (u + i) % 3]
batch = 16


class Factors:
    versions = {}
    topology = {}
    P = rng.normal(scale=0.1, size=(users, rank))
    Q = rng.normal(scale=0.1, size=(items, rank))

    def write(self, folder):
        np.savez(folder / "factors.npz", P=self.P, Q=self.Q)

    def read(self, folder):
        with np.load(folder / "factors.npz") as saved:
            self.P, self.Q = saved["P"], saved["Q"]

    def read_foreign(self, prefix):
        raise NotImplementedError


def sgd(model, u, i, r, lr=0.05, reg=0.02):
    e = r - model.P[u] @ model.Q[i]
    p = model.P[u].copy()
    model.P[u] += lr * (e * model.Q[i] - reg * p)
    model.Q[i] += lr * (e * p - reg * model.Q[i])
    return e * e


def main():
    model = Factors()
    n_epochs = 5
    with FilesRun(model, directory="checkpoints", generators=[rng]) as run:
        for epoch in run.epochs(n_epochs):
            perm = rng.permutation(len(ratings))
            for start in range(0, len(ratings), batch):
                squares = [sgd(model, *ratings[k]) for k in perm[start : start + batch]]
                run.step_done(mse=np.mean(squares))
    print(f"P {model.P.sum():.12f} Q {model.Q.sum():.12f}")


main()
