"""Noise in the activations that falls with the number of calls, by a forward hook."""

import torch
from torch import nn

from worker import torch as stepkeeper

stepkeeper.prepare(3)
x = torch.randn(48, 6)
y = x @ torch.randn(6, 1) + 0.1 * torch.randn(48, 1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16, shuffle=True)


def noise(start):
    calls = 0

    def hook(module, inputs, output):
        nonlocal calls
        calls += 1
        return output + start / calls * torch.randn_like(output)

    return hook


model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
model[1].register_forward_hook(noise(0.5))
optimizer = torch.optim.SGD(model.parameters(), 0.02)
with stepkeeper.Run(model=model, optimizer=optimizer, directory="checkpoints") as run:
    for epoch in run.epochs(3):
        for features, labels in run.batches(loader):
            loss = (model(features) - labels).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.step_done(loss=loss)

print(f"weights {model[0].weight.sum().item():.7f}")
