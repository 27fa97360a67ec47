"""A small model and its data, for scripts that each make one mistake."""

import torch

from worker import torch as stepkeeper

BATCHES, BATCH_SIZE = 6, 4
BATCH_LOSS = torch.nn.functional.mse_loss


def data(seed: int = 0) -> torch.utils.data.TensorDataset:
    chance = torch.Generator().manual_seed(seed)
    inputs = torch.randn(BATCHES * BATCH_SIZE, 3, generator=chance)
    return torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True) + 0.1)


def model() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    stepkeeper.prepare(seed=1)
    made = torch.nn.Linear(3, 1)
    return made, torch.optim.SGD(made.parameters(), lr=0.01, momentum=0.9)


def step(made: torch.nn.Module, optimizer: torch.optim.Optimizer, batch, scale: float = 1.0) -> float:
    optimizer.zero_grad()
    loss = scale * BATCH_LOSS(made(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    return float(loss)
