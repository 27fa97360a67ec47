"""A trainer object with an endless iterator over its loader, as diffusion repositories have it."""

import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import worker.torch

worker.torch.prepare(15)


class Denoiser(nn.Module):
    def __init__(self, features=6):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(features + 1, 24), nn.SiLU(), nn.Linear(24, features))

    def forward(self, x, t):
        return self.net(torch.cat([x, t], dim=1))


class Trainer:
    def __init__(self, model, dataset, batch_size=8, lr=1e-2, train_num_steps=30):
        self.model = model
        self.opt = torch.optim.Adam(model.parameters(), lr=lr)
        self.dl = itertools.cycle(DataLoader(dataset, batch_size=batch_size, shuffle=True))
        self.train_num_steps = train_num_steps
        self.run = worker.torch.Run(model=model, opt=self.opt, total_steps=train_num_steps, directory="checkpoints")

    def train(self):
        with self.run:
            while not self.run.reached:
                (x,) = next(self.dl)
                t = torch.rand(len(x), 1)
                noise = torch.randn_like(x)
                self.loss = ((self.model((1 - t) * x + t * noise, t) - noise) ** 2).mean()
                self.opt.zero_grad()
                self.loss.backward()
                self.opt.step()
                self.run.step_done(loss=self.loss.item())
        return sum(p.sum() for p in self.model.parameters()).item()


trainer = Trainer(Denoiser(), TensorDataset(torch.randn(40, 6)))
print(f"weights {trainer.train():.9f}")
