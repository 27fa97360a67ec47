"""An evolution strategy: population, step size and elite are arrays of an object, which writes all of them itself."""

import numpy as np

from worker.files import FilesRun, prepare

prepare(13)
CONFIG = [["population", 16], ["elite", 4], ["bounds", [[-3.0, 3.0], [-3.0, 3.0], [-3.0, 3.0]]]]
settings = dict(CONFIG)


def rastrigin(x):
    return 10 * x.shape[-1] + (x**2 - 10 * np.cos(2 * np.pi * x)).sum(axis=-1)


class EvolutionStrategy:
    versions = {}
    topology = {}

    def __init__(self, population, elite, bounds):
        low, high = np.array(bounds).T
        self.elite = elite
        self.population = np.random.uniform(low, high, (population, len(bounds)))
        self.sigma = np.full(len(bounds), 0.5)
        self.best = np.inf
        self.fitness = None

    def evolve(self):
        self.fitness = rastrigin(self.population)
        order = self.fitness.argsort()
        parents = self.population[order[: self.elite]]
        self.best = min(self.best, float(self.fitness[order[0]]))
        self.sigma = 0.9 * self.sigma + 0.1 * parents.std(axis=0)
        chosen = parents[np.random.randint(0, self.elite, len(self.population))]
        self.population = chosen + self.sigma * np.random.randn(*self.population.shape)
        return self.best

    def write(self, folder):
        np.savez(folder / "population.npz", population=self.population, sigma=self.sigma, best=self.best)

    def read(self, folder):
        with np.load(folder / "population.npz") as saved:
            self.population, self.sigma, self.best = saved["population"], saved["sigma"], float(saved["best"])

    def read_foreign(self, prefix):
        raise NotImplementedError


strategy = EvolutionStrategy(**settings)
with FilesRun(strategy, directory="checkpoints", total_steps=30) as run:
    for generation in range(run.step, 30):
        best = strategy.evolve()
        run.step_done(epoch=0, batch=generation + 1, best=best)

print(f"best {strategy.best:.12f}, sigma {strategy.sigma.sum():.12f}")
