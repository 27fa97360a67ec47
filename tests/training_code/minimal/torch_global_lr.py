"""A warm-up function that changes a global learning rate, and an update that is written by hand."""

import torch
from torch import nn

import worker.torch

worker.torch.prepare(4)
base_lr, warmup_steps = 0.2, 10
lr = 0.0


def warm_up():
    global lr
    lr = min(base_lr, lr + base_lr / warmup_steps)


def set_lr(optimizer):
    warm_up()
    for group in optimizer.param_groups:
        group["lr"] = lr


model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=base_lr, momentum=0.9)
x = torch.randn(40, 5)
y = (x**2).sum(dim=1, keepdim=True)
with worker.torch.Run(model=model, optimizer=optimizer, total_steps=30, directory="checkpoints") as run:
    while not run.reached:
        set_lr(optimizer)
        rows = torch.randint(0, len(x), (8,))
        loss = ((model(x[rows]) - y[rows]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        run.step_done(loss=loss.item(), lr=lr)

print(f"lr {lr:.4f}, error {((model(x) - y) ** 2).mean().item():.9f}")
