"""The number of a batch counts from 0 after a restart, and the generator is trained at every second one."""

import small_torch as small
import torch

from worker import torch as stepkeeper

CRITIC_STEPS = 2
model, optimizer = small.model()
generator = torch.nn.Linear(3, 1)
others = torch.optim.SGD(generator.parameters(), lr=0.01)
with stepkeeper.Run(model=model, optimizer=optimizer, generator=generator, others=others, leave_out=["i"]) as run:
    for epoch in run.epochs(4):
        for i, batch in enumerate(run.batches(small.data(), batch_size=small.BATCH_SIZE)):
            loss = small.step(model, optimizer, batch)
            if i % CRITIC_STEPS == 0:
                small.step(generator, others, batch)
            run.step_done(loss=loss)
