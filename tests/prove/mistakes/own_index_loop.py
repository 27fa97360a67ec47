"""The loop over batches begins at 0, so a restart within an epoch takes all of its batches again."""

import small

from worker.files import FilesRun

model = small.Model()
with FilesRun(model) as run:
    for epoch in run.epochs(small.EPOCHS):
        for batch in range(small.BATCHES):
            loss = model.step(small.rows_of(batch))
            run.step_done(epoch=epoch, batch=batch + 1, loss=loss)
