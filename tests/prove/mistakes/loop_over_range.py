"""The loop over epochs is the script's own, so a restart begins it anew and trains longer."""

import small

from worker.files import FilesRun

model = small.Model()
with FilesRun(model) as run:
    for epoch in range(small.EPOCHS):
        for batch in range(small.BATCHES):
            loss = model.step(small.rows_of(batch))
            run.step_done(epoch=epoch, batch=batch + 1, loss=loss)
