"""Momentum by hand, in an attribute of each parameter."""

import torch
from torch import nn

from worker import torch as stepkeeper

stepkeeper.prepare(3)
x = torch.randn(48, 6)
y = x @ torch.randn(6, 1) + 0.1 * torch.randn(48, 1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16, shuffle=True)
model = nn.Linear(6, 1)
with stepkeeper.Run(model=model, directory="checkpoints") as run:
    for epoch in run.epochs(3):
        for features, labels in run.batches(loader):
            loss = (model(features) - labels).square().mean()
            model.zero_grad()
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.velocity = 0.9 * getattr(parameter, "velocity", 0) + parameter.grad
                    parameter -= 0.01 * parameter.velocity
            run.step_done(loss=loss)

print(f"weights {model.weight.sum().item():.7f}")
