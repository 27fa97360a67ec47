"""Two agents trained one after the other in each epoch, by one method."""

import torch
from torch import nn

import worker.torch

worker.torch.prepare(5)
x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))


class Agent:
    def __init__(self, name, rate):
        self.name = name
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate)
        self.loss = None

    def train(self, run, steps):
        for i in run.range(steps):
            batch = x[i * 8 : i * 8 + 8]
            self.loss = nn.functional.mse_loss(self.model(batch), batch.sum(1, keepdim=True))
            self.optimizer.zero_grad()
            self.loss.backward()
            self.optimizer.step()
            run.step_done(loss=self.loss.item())


agents = [Agent("a", 0.1), Agent("b", 0.05), Agent("c", 0.02)]
parts = {f"model_{a.name}": a.model for a in agents} | {f"optimizer_{a.name}": a.optimizer for a in agents}
with worker.torch.Run(**parts, directory="checkpoints") as run:
    for epoch in run.epochs(9):
        agents[epoch % 3].train(run, 5)
print(f"{sum(a.model.weight.sum() for a in agents).item():.9f}")
