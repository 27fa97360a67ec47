"""Sharpness-aware minimization: an optimizer around another one, whose momentum is in the state of neither."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

import worker.torch


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super().__init__(params, {"rho": rho, **kwargs})
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self):
        norm = torch.norm(torch.stack([p.grad.norm() for group in self.param_groups for p in group["params"]]))
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old_p"] = p.data.clone()
                p.add_(group["rho"] / (norm + 1e-12) * p.grad)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.copy_(self.state[p]["old_p"])
        self.base_optimizer.step()
        self.zero_grad()


worker.torch.prepare(8)
images, labels = torch.randn(48, 6), torch.randint(0, 3, (48,))
loader = DataLoader(TensorDataset(images, labels), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8)
criterion = nn.CrossEntropyLoss()

with worker.torch.Run(model=model, optimizer=optimizer, scheduler=scheduler, directory="checkpoints") as run:
    for epoch in run.epochs(4):
        for x, y in run.batches(loader):
            criterion(model(x), y).backward()
            optimizer.first_step()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.second_step()
            run.step_done(loss=loss.item())
        scheduler.step()

with torch.no_grad():
    print(f"loss {criterion(model(images), labels):.9f}")
