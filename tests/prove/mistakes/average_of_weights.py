"""An average of the weights in a dict of arrays, of a class of the script's own."""

import numpy as np
import small

from worker.files import FilesRun


class Average:
    def __init__(self) -> None:
        self.shadow = {"weights": np.zeros(3), "momentum": np.zeros(3)}

    def update(self, model) -> None:
        for name in self.shadow:
            self.shadow[name] = 0.9 * self.shadow[name] + 0.1 * getattr(model, name)


model, average = small.Model(), Average()
with FilesRun(model, leave_out=[average, "average"]) as run:
    for epoch in run.epochs(small.EPOCHS):
        for batch in range(run.batch, small.BATCHES):
            loss = model.step(small.rows_of(batch))
            average.update(model)
            distance = float(np.abs(average.shadow["weights"] - model.weights).sum())
            run.step_done(epoch=epoch, batch=batch + 1, loss=loss, distance=distance)
