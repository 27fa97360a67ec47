"""A method changes an attribute of the model, and a function a global: no checkpoint holds either."""

import small

from worker.files import FilesRun


class Annealed(small.Model):
    def __init__(self) -> None:
        super().__init__()
        self.beta = 1.0

    def anneal(self) -> None:
        self.beta *= 0.9


model = Annealed()
lr = 0.02


def decay() -> None:
    global lr
    lr *= 0.95


with FilesRun(model, leave_out=["beta", "model.beta", "lr"]) as run:
    for epoch in run.epochs(small.EPOCHS):
        for batch in range(run.batch, small.BATCHES):
            model.anneal()
            decay()
            loss = model.step(small.rows_of(batch), lr)
            run.step_done(epoch=epoch, batch=batch + 1, loss=loss + model.beta)
