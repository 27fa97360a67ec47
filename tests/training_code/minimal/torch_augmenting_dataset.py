"""A Dataset that owns the generator of its augmentation."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import worker.torch

worker.torch.prepare(33)


class NoisySignals(Dataset):
    def __init__(self, count=30, length=12, seed=0):
        self.rng = np.random.default_rng(seed)
        self.clean = np.sin(np.linspace(0, 6, length) + np.arange(count)[:, None]).astype(np.float32)

    def __len__(self):
        return len(self.clean)

    def __getitem__(self, index):
        clean = np.roll(self.clean[index], int(self.rng.integers(0, 3)))
        noisy = clean + self.rng.normal(0, 0.2, clean.shape).astype(np.float32)
        return torch.from_numpy(noisy), torch.from_numpy(clean.copy())


dataset = NoisySignals()
loader = DataLoader(dataset, batch_size=6, shuffle=True)
model = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 12))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
with worker.torch.Run(model=model, optimizer=optimizer, directory="checkpoints") as run:
    for epoch in run.epochs(5):
        for noisy, clean in run.batches(loader):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(noisy), clean)
            loss.backward()
            optimizer.step()
            run.step_done(loss=loss.item())

print(f"weights {sum(p.sum() for p in model.parameters()).item():.9f}")
