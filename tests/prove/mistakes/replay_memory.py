"""A replay memory: half of each batch is drawn from what was seen before."""

import random
from collections import deque

import numpy as np
import small

from worker.files import FilesRun

model = small.Model()
memory = deque(maxlen=64)
with FilesRun(model, leave_out=["memory"]) as run:
    for epoch in run.epochs(small.EPOCHS):
        for batch in range(run.batch, small.BATCHES):
            memory.append(small.rows_of(batch))
            loss = model.step(np.concatenate([small.rows_of(batch), random.choice(memory)]))
            run.step_done(epoch=epoch, batch=batch + 1, loss=loss)
