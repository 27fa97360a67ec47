"""A regression whose numbers stand in nested dataclasses, with a loop over cfg.train.epochs."""

from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import worker.torch


@dataclass
class ModelConfig:
    sizes: list = field(default_factory=lambda: [[6, 12], [12, 12], [12, 1]])
    activation: str = "gelu"


@dataclass
class TrainConfig:
    epochs: int = 4
    batch_size: int = 8
    lr: float = 3e-3
    weight_decay: float = 0.01
    seed: int = 5


@dataclass
class Config:
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)


def build(cfg):
    layers = []
    for inputs, outputs in cfg.sizes:
        layers += [nn.Linear(inputs, outputs), nn.GELU()]
    return nn.Sequential(*layers[:-1])


def fit(cfg):
    worker.torch.prepare(cfg.train.seed)
    x = torch.randn(48, 6)
    dataset = TensorDataset(x, x.sin().sum(dim=1, keepdim=True))
    loader = DataLoader(dataset, batch_size=cfg.train.batch_size, shuffle=True)
    model = build(cfg.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.train.lr, weight_decay=cfg.train.weight_decay)
    criterion = nn.MSELoss()
    with worker.torch.Run(model=model, optimizer=optimizer, directory="checkpoints") as run:
        for epoch in run.epochs(cfg.train.epochs):
            for features, targets in run.batches(loader):
                optimizer.zero_grad()
                loss = criterion(model(features), targets)
                loss.backward()
                optimizer.step()
                run.step_done(loss=loss.item())
    with torch.no_grad():
        return criterion(model(x), x.sin().sum(dim=1, keepdim=True)).item()


print(f"error {fit(Config()):.10f}")
