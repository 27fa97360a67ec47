"""The Lookahead wrapper around an optimizer: slow weights in a dict, and a counter of its own."""

import torch
from torch import nn

import worker.torch

worker.torch.prepare(91)


class Lookahead:
    def __init__(self, optimizer, k=5, alpha=0.5):
        self.optimizer = optimizer
        self.k = k
        self.alpha = alpha
        self.counter = 0
        self.slow = [[p.data.clone() for p in group["params"]] for group in optimizer.param_groups]

    def state_dict(self):
        return {"counter": self.counter, "slow": self.slow}

    def load_state_dict(self, state):
        self.counter, self.slow = state["counter"], state["slow"]

    def zero_grad(self):
        self.optimizer.zero_grad()

    def step(self):
        self.optimizer.step()
        self.counter += 1
        if self.counter % self.k == 0:
            for group, slow_weights in zip(self.optimizer.param_groups, self.slow):
                for p, q in zip(group["params"], slow_weights):
                    q.add_(p.data - q, alpha=self.alpha)
                    p.data.copy_(q)


net = nn.Sequential(nn.Linear(4, 12), nn.ELU(), nn.Linear(12, 3))
base = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
optimizer = Lookahead(base, k=4)
x, y = torch.randn(45, 4), torch.randint(0, 3, (45,))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=9, shuffle=True)
with worker.torch.Run(net=net, optimizer=base, lookahead=optimizer, directory="checkpoints") as run:
    for epoch in run.epochs(6):
        for inputs, labels in run.batches(loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(inputs), labels)
            loss.backward()
            optimizer.step()
            run.step_done(loss=loss.item())

print(f"weights {sum(p.sum() for p in net.parameters()).item():.9f}, {optimizer.counter} steps")
