"""The number of a batch counts from 0 after a restart, and the generator is trained at every second one."""

import numpy as np
import small

from worker.files import FilesRun

CRITIC_STEPS = 2


class Adversaries(small.Model):
    """A model, and a generator that is trained more seldom."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = small.Model()

    def write(self, folder) -> None:
        super().write(folder)
        np.savez(folder / "generator.npz", weights=self.generator.weights, momentum=self.generator.momentum)

    def read(self, folder) -> None:
        super().read(folder)
        found = np.load(folder / "generator.npz")
        self.generator.weights, self.generator.momentum = found["weights"], found["momentum"]


model = Adversaries()
with FilesRun(model, leave_out=["i"]) as run:
    for epoch in run.epochs(small.EPOCHS):
        for i, rows in enumerate(run.order(range(small.BATCHES * small.BATCH_SIZE), batch_size=small.BATCH_SIZE)):
            loss = model.step(rows)
            if i % CRITIC_STEPS == 0:
                model.generator.step(rows)
            run.step_done(loss=loss)
