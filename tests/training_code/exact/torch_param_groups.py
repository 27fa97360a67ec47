"""A cosine schedule by hand: each step sets the rates of the optimizer's groups from the run's own count."""

import logging
import math
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import worker.torch

logging.basicConfig(level=logging.INFO, format="%(message)s")
logger = logging.getLogger("train")
worker.torch.prepare(71)
max_lr, min_lr, warmup, total = 0.05, 0.001, 6, 30


def get_lr(it):
    if it < warmup:
        return max_lr * (it + 1) / warmup
    ratio = (it - warmup) / (total - warmup)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (max_lr - min_lr)


backbone, head = nn.Linear(5, 12), nn.Linear(12, 2)
optimizer = torch.optim.SGD(
    [{"params": backbone.parameters(), "scale": 0.1}, {"params": head.parameters(), "scale": 1.0}], lr=max_lr
)
loader = DataLoader(TensorDataset(torch.randn(40, 5), torch.randint(0, 2, (40,))), batch_size=8, shuffle=True)
t0 = time.time()
with worker.torch.Run(
    backbone=backbone, head=head, optimizer=optimizer, total_steps=total, directory="checkpoints"
) as run:
    for X, Y in run.batches(loader):
        lr = get_lr(run.step)
        for param_group in optimizer.param_groups:
            param_group["lr"] = lr * param_group["scale"]
        logits = head(torch.relu(backbone(X)))
        loss = nn.functional.cross_entropy(logits, Y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_([*backbone.parameters(), *head.parameters()], 1.0)
        optimizer.step()
        t1 = time.time()
        dt, t0 = t1 - t0, t1
        if run.step % 10 == 0:
            logger.info("iter %d: loss %.4f, norm %.4f, time %.2fms", run.step, loss.item(), norm, dt * 1000)
        run.step_done(loss=loss.item(), lr=lr)

print(
    f"weights {backbone.weight.sum().item():.9f} {head.weight.sum().item():.9f}, lr {optimizer.param_groups[0]['lr']:.9f}"
)
