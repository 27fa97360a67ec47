"""Gradients are added up over four steps; no checkpoint holds them."""

import small_torch as small

from worker import torch as stepkeeper

model, optimizer = small.model()
with stepkeeper.Run(model=model, optimizer=optimizer) as run:
    optimizer.zero_grad()
    for epoch in run.epochs(4):
        for batch in run.batches(small.data(), batch_size=small.BATCH_SIZE):
            loss = small.BATCH_LOSS(model(batch[0]), batch[1])
            loss.backward()
            if run.step % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
            run.step_done(loss=float(loss))
