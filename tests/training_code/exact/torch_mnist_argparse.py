"""The shape of PyTorch's MNIST example: arguments, train() and test() called for each epoch, StepLR."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

import worker.torch


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, 1)
        self.dropout = nn.Dropout(0.25)
        self.fc = nn.Linear(4 * 9, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        return F.log_softmax(self.fc(self.dropout(torch.flatten(x, 1))), dim=1)


def train(args, model, train_loader, optimizer, epoch, run):
    model.train()
    for batch_idx, (data, target) in enumerate(run.batches(train_loader), run.batch):
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print(f"Train Epoch: {epoch} [{batch_idx * len(data)}/{len(train_loader.dataset)}] Loss: {loss.item():.6f}")
        run.step_done(loss=loss.item())


def test(model, test_loader):
    model.eval()
    test_loss = 0
    with torch.no_grad():
        for data, target in test_loader:
            test_loss += F.nll_loss(model(data), target, reduction="sum").item()
    print(f"Test set: Average loss: {test_loss / len(test_loader.dataset):.8f}")


def main():
    parser = argparse.ArgumentParser(description="PyTorch MNIST Example")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--log-interval", type=int, default=3)
    args = parser.parse_args()
    worker.torch.prepare(1)
    images, labels = torch.randn(60, 1, 8, 8), torch.randint(0, 4, (60,))
    train_loader = DataLoader(TensorDataset(images, labels), batch_size=10, shuffle=True)
    test_loader = DataLoader(TensorDataset(images[:20], labels[:20]), batch_size=20)

    model = Net()
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    with worker.torch.Run(model=model, optimizer=optimizer, scheduler=scheduler, directory="checkpoints") as run:
        for epoch in run.epochs(args.epochs):
            train(args, model, train_loader, optimizer, epoch, run)
            test(model, test_loader)
            scheduler.step()


if __name__ == "__main__":
    main()
