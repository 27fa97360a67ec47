"""A warm-up function that changes a global learning rate, and an update that is written by hand."""

import torch
from torch import nn

import worker.torch

worker.torch.prepare(4)
base_lr, warmup_steps = 0.2, 10


def warm_up(step):
    return min(base_lr, base_lr * (step + 1) / warmup_steps)


def set_lr(optimizer, step):
    for group in optimizer.param_groups:
        group["lr"] = warm_up(step)


model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=base_lr, momentum=0.9)
x = torch.randn(40, 5)
y = (x**2).sum(dim=1, keepdim=True)
with worker.torch.Run(model=model, optimizer=optimizer, total_steps=30, directory="checkpoints") as run:
    while not run.reached:
        set_lr(optimizer, run.step)
        rows = torch.randint(0, len(x), (8,))
        loss = ((model(x[rows]) - y[rows]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        run.step_done(loss=loss.item())

print(f"error {((model(x) - y) ** 2).mean().item():.9f}")
