"""A function learned at the points of a quasi-random sequence."""

import torch
from torch import nn

from worker import torch as stepkeeper

stepkeeper.prepare(3)
sobol = torch.quasirandom.SobolEngine(6, scramble=True, seed=1)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.05)
with stepkeeper.Run(model=model, optimizer=optimizer, directory="checkpoints") as run:
    for _ in run.range(20):
        points = sobol.draw(8)
        loss = (model(points) - points.sin().sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.step_done(loss=loss)

print(f"weights {model.weight.sum().item():.7f}")
