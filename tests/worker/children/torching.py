"""Trains a small PyTorch model in FOLDER for some steps; prints each step and, at the end, a hash of everything.

With a third argument it stands still at that step, to be killed there.
"""

import hashlib
import sys
import time

import torch
from torch import nn

from worker import torch as stepkeeper


def main() -> None:
    directory, steps = sys.argv[1], int(sys.argv[2])
    hold_at = int(sys.argv[3]) if len(sys.argv) > 3 else None
    stepkeeper.prepare(seed=3)
    torch.set_num_threads(1)
    numbers = torch.Generator().manual_seed(5)
    data = torch.utils.data.TensorDataset(
        torch.randn(96, 6, generator=numbers), torch.randint(0, 4, (96,), generator=numbers)
    )
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    scaler = torch.amp.GradScaler("cpu")
    noise = torch.Generator().manual_seed(9)
    run = stepkeeper.Run(
        model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, generators={"noise": noise},
        total_steps=steps, directory=directory, interval="5 steps",
    )  # fmt: skip
    with run:
        for inputs, labels in run.batches(data, batch_size=10, seed=2):
            optimizer.zero_grad()
            noisy = inputs + 0.1 * torch.randn(inputs.shape, generator=noise)
            loss = nn.functional.cross_entropy(model(noisy), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            run.step_done(loss=loss.item())
            print(f"step {run.step}", flush=True)
            if run.step == hold_at:
                time.sleep(600)
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.numpy().tobytes())
    for state in optimizer.state_dict()["state"].values():
        for value in state.values():
            digest.update(value.numpy().tobytes())
    digest.update(torch.get_rng_state().numpy().tobytes() + noise.get_state().numpy().tobytes())
    print(f"hash {digest.hexdigest()} {scheduler.get_last_lr()} {'tensorflow' in sys.modules}", flush=True)


if __name__ == "__main__":
    main()
