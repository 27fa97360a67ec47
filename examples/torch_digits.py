"""Handwritten digits in PyTorch, with the guarantees of the TensorFlow examples and without TensorFlow.

    python examples/torch_digits.py               trains, and continues from its last checkpoint when started again
    supervisord -n -c examples/torch_digits.conf  the same, under supervision

The data are the 1,797 images of 8 x 8 pixels that come with scikit-learn; every fifth is for the test.
"""

import os

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from worker import torch as stepkeeper

TOTAL_STEPS = int(os.environ.get("STEPS", "400"))
BATCH_SIZE = 64


def load() -> tuple[torch.utils.data.TensorDataset, tuple[torch.Tensor, torch.Tensor]]:
    """Training set, and the test set's images float32 [n, 1, 8, 8] in [0, 1] and labels int64 [n]."""
    images, labels = load_digits(return_X_y=True)
    images = torch.from_numpy((images / 16.0).astype("float32").reshape(-1, 1, 8, 8))
    labels = torch.from_numpy(labels.astype("int64"))
    test = torch.from_numpy(np.arange(len(labels)) % 5 == 0)
    return torch.utils.data.TensorDataset(images[~test], labels[~test]), (images[test], labels[test])


def build() -> nn.Module:
    """The network."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(512, 64), nn.ReLU(), nn.Dropout(0.4), nn.Linear(64, 10),
    )  # fmt: skip


def main() -> None:
    """Trains, then prints the accuracy on the test images."""
    stepkeeper.prepare(seed=1, directory="runs/torch")
    training, (test_images, test_labels) = load()
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, TOTAL_STEPS)
    run = stepkeeper.Run(
        model=model, optimizer=optimizer, scheduler=scheduler, total_steps=TOTAL_STEPS, directory="runs/torch",
        interval="50 steps",
    )  # fmt: skip
    with run:
        model.train()
        for images, labels in run.batches(training, batch_size=BATCH_SIZE, seed=1):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
            run.step_done(loss=loss.item())
    model.eval()
    with torch.no_grad():
        accuracy = float((model(test_images).argmax(1) == test_labels).float().mean())
    print(f"test accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
