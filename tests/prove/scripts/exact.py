"""A training that a restart continues exactly. SLOW: seconds for each step."""

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "mistakes"))
import small

from worker.files import FilesRun

model = small.Model()
with FilesRun(model) as run:
    for epoch in run.epochs(small.EPOCHS):
        for batch in range(run.batch, small.BATCHES):
            loss = model.step(small.rows_of(batch))
            time.sleep(float(os.environ.get("SLOW", "0")))
            run.step_done(epoch=epoch, batch=batch + 1, loss=loss)
