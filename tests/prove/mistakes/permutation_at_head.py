"""An order is drawn at the head of each epoch; after a restart within one, another is drawn."""

import numpy as np
import small

from worker.files import FilesRun

model = small.Model()
with FilesRun(model, leave_out=["order"]) as run:
    for epoch in run.epochs(small.EPOCHS):
        order = np.random.permutation(len(small.inputs))
        for batch in range(run.batch, small.BATCHES):
            loss = model.step(order[small.rows_of(batch)])
            run.step_done(epoch=epoch, batch=batch + 1, loss=loss)
