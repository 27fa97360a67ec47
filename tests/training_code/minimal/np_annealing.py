"""Simulated annealing of a tour: the temperature falls, and the best tour so far is remembered by the function."""

import numpy as np

from worker.files import FilesRun, prepare

prepare(23)
cities = np.random.rand(14, 2)


def length(tour):
    path = cities[tour]
    return float(np.linalg.norm(path - np.roll(path, 1, axis=0), axis=1).sum())


class Tour:
    versions = {}
    topology = {}

    def __init__(self):
        self.order = np.arange(len(cities))

    def write(self, folder):
        np.save(folder / "order.npy", self.order)

    def read(self, folder):
        self.order = np.load(folder / "order.npy")

    def read_foreign(self, prefix):
        raise NotImplementedError


def anneal(tour, steps):
    temperature = 1.0
    best_tour, best_length = tour.order.copy(), length(tour.order)
    with FilesRun(tour, directory="checkpoints", total_steps=steps) as run:
        while not run.reached:
            i, j = sorted(np.random.randint(0, len(cities), 2))
            candidate = tour.order.copy()
            candidate[i : j + 1] = candidate[i : j + 1][::-1]
            delta = length(candidate) - length(tour.order)
            if delta < 0 or np.random.rand() < np.exp(-delta / temperature):
                tour.order = candidate
            if length(tour.order) < best_length:
                best_tour, best_length = tour.order.copy(), length(tour.order)
            temperature *= 0.93
            run.step_done(epoch=0, batch=run.step + 1, length=length(tour.order))
    return best_tour, best_length, temperature


best_tour, best_length, temperature = anneal(Tour(), 40)
print(f"best {best_length:.12f} at {temperature:.6f}: {best_tour.tolist()}")
