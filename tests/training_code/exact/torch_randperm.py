"""Mini-batches by hand: the run goes through a permutation from where it stopped."""

import torch
from torch import nn

import worker.torch

worker.torch.prepare(25)
n_epochs, batch_size = 5, 10
X = torch.randn(50, 4)
y = X.prod(dim=1, keepdim=True)
model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
loss_fn = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

with worker.torch.Run(model=model, optimizer=optimizer, directory="checkpoints") as run:
    for epoch in run.epochs(n_epochs):
        for indices in run.order(torch.randperm(X.size()[0]), batch_size):
            optimizer.zero_grad()
            batch_x, batch_y = X[indices], y[indices]
            loss = loss_fn(model(batch_x), batch_y)
            loss.backward()
            optimizer.step()
            run.step_done(loss=loss.item())

with torch.no_grad():
    print(f"loss {loss_fn(model(X), y).item():.9f}")
