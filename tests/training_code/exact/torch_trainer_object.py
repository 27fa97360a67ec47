"""A trainer whose attributes are assigned in each step before they are read, with callbacks that print."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import worker.torch


class Printer:
    def __init__(self, stream, every):
        self.stream = stream
        self.every = every

    def after_step(self, trainer):
        if trainer.run.step % self.every == 0:
            print(f"step {trainer.run.step}: {trainer.loss.item():.4f}", file=self.stream)


class GradientNorm:
    def after_step(self, trainer):
        self.norm = sum(p.grad.norm() ** 2 for p in trainer.model.parameters()) ** 0.5
        trainer.metrics["norm"] = self.norm.item()


class Trainer:
    def __init__(self, model, loader, callbacks):
        self.model = model
        self.loader = loader
        self.callbacks = callbacks
        self.optimizer = torch.optim.NAdam(model.parameters(), lr=0.01)
        self.device = torch.device("cpu")

    def training_step(self, batch):
        self.batch = [each.to(self.device) for each in batch]
        self.logits = self.model(self.batch[0])
        self.loss = nn.functional.cross_entropy(self.logits, self.batch[1])
        self.optimizer.zero_grad()
        self.loss.backward()
        self.optimizer.step()
        self.metrics = {"loss": self.loss.item()}
        for callback in self.callbacks:
            callback.after_step(self)

    def fit(self, epochs):
        with worker.torch.Run(model=self.model, optimizer=self.optimizer, directory="checkpoints") as self.run:
            for self.epoch in self.run.epochs(epochs):
                for batch in self.run.batches(self.loader):
                    self.training_step(batch)
                    self.run.step_done(**self.metrics)


worker.torch.prepare(81)
dataset = TensorDataset(torch.randn(44, 6), torch.randint(0, 3, (44,)))
model = nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 3))
trainer = Trainer(model, DataLoader(dataset, batch_size=8, shuffle=True), [GradientNorm(), Printer(sys.stdout, 7)])
trainer.fit(5)
print(f"weights {sum(p.sum() for p in model.parameters()).item():.9f}")
