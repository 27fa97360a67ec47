"""A generator without a seed: no two runs are the same."""

import numpy as np
import small

from worker.files import FilesRun

model = small.Model()
chance = np.random.default_rng()
with FilesRun(model, leave_out=[chance]) as run:
    for epoch in run.epochs(small.EPOCHS):
        for batch in range(run.batch, small.BATCHES):
            loss = model.step(chance.choice(len(small.inputs), small.BATCH_SIZE))
            run.step_done(epoch=epoch, batch=batch + 1, loss=loss)
