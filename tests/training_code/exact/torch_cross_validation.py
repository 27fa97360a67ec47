"""Cross validation in one run: every second epoch begins a fold, with new weights and a sampler of its own."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

import worker.torch

worker.torch.prepare(33)
x = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
data = TensorDataset(x, x.sum(1, keepdim=True))
folds = np.array_split(np.random.default_rng(0).permutation(60), 3)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def reset_weights(module):
    if isinstance(module, nn.Linear):
        module.reset_parameters()


with worker.torch.Run(model=model, optimizer=optimizer, state={"results": {}}, directory="checkpoints") as run:
    for epoch in run.epochs(6):
        fold = epoch // 2
        held_out = folds[fold]
        if epoch % 2 == 0:
            model.apply(reset_weights)
        others = np.concatenate([part for number, part in enumerate(folds) if number != fold])
        loader = DataLoader(data, batch_size=8, sampler=SubsetRandomSampler(others))
        for features, targets in run.batches(loader):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(features), targets)
            loss.backward()
            optimizer.step()
            run.step_done(loss=loss.item())
        with torch.no_grad():
            run.state["results"][fold] = nn.functional.mse_loss(model(x[held_out]), data.tensors[1][held_out]).item()

print(run.state["results"])
