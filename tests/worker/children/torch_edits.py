"""Trains again and again with PyTorch, each time with another script, and prints what it uses: FOLDER."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from worker import torch as stepkeeper
from worker.process.startup import current_attempt

FOLDER = Path(sys.argv[1])
Make = Callable[[Any], Any]


def train(name: str, make: Make, steps: int = 1, line: str = "", schedule: Make | None = None, **data: Any) -> None:
    current_attempt().failure_sent = False  # an attempt reports one failure
    torch.manual_seed(data.pop("seed", 1))
    model = nn.Linear(2, 1)
    optimizer = make(model.parameters())
    parts = {"model": model, "optimizer": optimizer}
    if schedule is not None:
        parts["scheduler"] = schedule(optimizer)
    rows = torch.utils.data.TensorDataset(data.get("rows", torch.arange(48.0).reshape(24, 2)))
    print(f"--- {name}", file=sys.stderr, flush=True)
    try:
        with stepkeeper.Run(**parts, directory=FOLDER / name.split(":")[0], interval="1000 steps") as run:
            exec(line, {"run": run, **parts})
            for (batch,) in run.batches(rows, batch_size=data.get("batch_size", 4)):
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()
                if schedule is not None:
                    parts["scheduler"].step()
                run.step_done()
                steps -= 1
                if steps == 0:
                    break
    except SystemExit as left:
        print(f"{name}: {left.code}", flush=True)
        return
    print(f"{name}: {round(optimizer.param_groups[0]['lr'], 9)}", flush=True)


adam, optim, rates = torch.optim.Adam, torch.optim, torch.optim.lr_scheduler
train("rate:0", lambda own: adam(own, lr=3e-3))
train("rate:1", lambda own: adam(own, lr=1e-4))
train("rate:2", lambda own: adam(own, lr=1e-4), line='if run.step == 2: optimizer.param_groups[0]["lr"] = 0.0001')
train("rate:3", lambda own: adam(own, lr=1e-4))
train("class:0", lambda own: adam(own, lr=1e-3))
train("class:1", lambda own: optim.AdamW(own, lr=1e-3))
train("sgd:0", lambda own: adam(own, lr=1e-3))
train("sgd:1", lambda own: optim.SGD(own, lr=1e-3))
train("betas:0", lambda own: adam(own, lr=1e-3))
train("betas:1", lambda own: adam(own, lr=1e-3, betas=(0.8, 0.99)))
for number, gamma in enumerate((0.5, 0.5, 0.1)):
    train(f"schedule:{number}", lambda own: optim.SGD(own, lr=0.8),
          schedule=lambda own, gamma=gamma: rates.StepLR(own, 1, gamma))  # fmt: skip
train("seed:0", lambda own: optim.SGD(own, lr=1e-3))
train("seed:1", lambda own: optim.SGD(own, lr=1e-3), seed=2)
train("data:0", lambda own: optim.SGD(own, lr=1e-3))
train("data:1", lambda own: optim.SGD(own, lr=1e-3))
train("data:2", lambda own: optim.SGD(own, lr=1e-3), rows=torch.ones(24, 2))
train("data:3", lambda own: optim.SGD(own, lr=1e-3), rows=torch.ones(20, 2))
