"""Gradient accumulation: the optimizer steps after every fourth batch, which is a step of the run."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import worker.torch

worker.torch.prepare(19)
accumulation_steps = 4
model = nn.Sequential(nn.Linear(7, 14), nn.ReLU(), nn.Linear(14, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
x = torch.randn(48, 7)
loader = DataLoader(TensorDataset(x, x.abs().sum(dim=1, keepdim=True)), batch_size=4, shuffle=True)

with worker.torch.Run(model=model, optimizer=optimizer, directory="checkpoints") as run:
    for epoch in run.epochs(3):
        for i, (inputs, targets) in enumerate(run.batches(loader), run.batch):
            loss = nn.functional.mse_loss(model(inputs), targets) / accumulation_steps
            loss.backward()
            if (i + 1) % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()
                run.step_done(loss=loss.item())

print(f"weights {sum(p.sum() for p in model.parameters()).item():.9f}")
