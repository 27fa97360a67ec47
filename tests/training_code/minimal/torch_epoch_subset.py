"""An epoch trains on a random part of the examples, in a DataLoader of its own."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import worker.torch

worker.torch.prepare(33)
x = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
data = TensorDataset(x, (x[:, :1] * x[:, 1:2] > 0).float())
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.1), nn.Linear(12, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loss_fn = nn.BCEWithLogitsLoss()
with worker.torch.Run(model=model, optimizer=optimizer, directory="checkpoints") as run:
    for epoch in run.epochs(5):
        chosen = np.random.permutation(len(data))[:40]
        loader = DataLoader(Subset(data, chosen.tolist()), batch_size=8, shuffle=True)
        for features, labels in run.batches(loader):
            optimizer.zero_grad()
            loss = loss_fn(model(features), labels)
            loss.backward()
            optimizer.step()
            run.step_done(loss=loss.item())

print(f"weights {sum(p.sum() for p in model.parameters()).item():.9f}")
