"""The EMA class of many repositories: a dict of shadow tensors, registered once and updated after each step."""

import torch
from torch import nn

import worker.torch

worker.torch.prepare(6)


class EMA:
    def __init__(self, model, decay):
        self.model = model
        self.decay = decay
        self.shadow = {}
        self.backup = {}

    def register(self):
        for name, param in self.model.named_parameters():
            if param.requires_grad:
                self.shadow[name] = param.data.clone()

    def update(self):
        for name, param in self.model.named_parameters():
            if param.requires_grad:
                assert name in self.shadow
                new_average = (1.0 - self.decay) * param.data + self.decay * self.shadow[name]
                self.shadow[name] = new_average.clone()

    def apply_shadow(self):
        for name, param in self.model.named_parameters():
            self.backup[name] = param.data
            param.data = self.shadow[name]

    def restore(self):
        for name, param in self.model.named_parameters():
            param.data = self.backup[name]
        self.backup = {}


model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
ema = EMA(model, 0.9)
ema.register()
x, y = torch.randn(50, 6), torch.randint(0, 2, (50,))
dataset = torch.utils.data.TensorDataset(x, y)

with worker.torch.Run(model=model, optimizer=optimizer, directory="checkpoints") as run:
    for epoch in run.epochs(4):
        model.train()
        for features, labels in run.batches(dataset, batch_size=10, seed=2):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(features), labels)
            loss.backward()
            optimizer.step()
            ema.update()
            run.step_done(loss=loss.item())

ema.apply_shadow()
print(f"averaged loss {nn.functional.cross_entropy(model(x), y).item():.9f}")
ema.restore()
