"""The EarlyStopping class that many notebooks copy, with its counter, its best score and the best weights."""

import copy

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import worker.torch

worker.torch.prepare(12)


class EarlyStopping:
    """Early stops the training if validation loss doesn't improve after a given patience."""

    def __init__(self, patience=7, verbose=False, delta=0, trace_func=print):
        self.patience = patience
        self.verbose = verbose
        self.counter = 0
        self.best_score = None
        self.early_stop = False
        self.val_loss_min = np.inf
        self.delta = delta
        self.trace_func = trace_func
        self.best_weights = None

    def __call__(self, val_loss, model):
        score = -val_loss
        if self.best_score is None:
            self.best_score = score
            self.save_checkpoint(val_loss, model)
        elif score < self.best_score + self.delta:
            self.counter += 1
            self.trace_func(f"EarlyStopping counter: {self.counter} out of {self.patience}")
            if self.counter >= self.patience:
                self.early_stop = True
        else:
            self.best_score = score
            self.save_checkpoint(val_loss, model)
            self.counter = 0

    def state_dict(self):
        names = ("counter", "best_score", "early_stop", "val_loss_min", "best_weights")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state):
        self.__dict__.update(state)

    def save_checkpoint(self, val_loss, model):
        self.best_weights = copy.deepcopy(model.state_dict())
        self.val_loss_min = val_loss


x = torch.randn(40, 8)
y = (x[:, :1] > 0).float()
valid_x, valid_y = torch.randn(20, 8), torch.randint(0, 2, (20, 1)).float()
loader = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
criterion = nn.BCEWithLogitsLoss()
early_stopping = EarlyStopping(patience=4, delta=0.001)

with worker.torch.Run(model=model, optimizer=optimizer, early_stopping=early_stopping, directory="checkpoints") as run:
    for epoch in run.epochs(20):
        model.train()
        for features, labels in run.batches(loader):
            optimizer.zero_grad()
            loss = criterion(model(features), labels)
            loss.backward()
            optimizer.step()
            run.step_done(loss=loss.item())
        model.eval()
        with torch.no_grad():
            valid_loss = criterion(model(valid_x), valid_y).item()
        early_stopping(valid_loss, model)
        if early_stopping.early_stop:
            print("Early stopping")
            break

model.load_state_dict(early_stopping.best_weights)
print(f"best {early_stopping.val_loss_min:.9f} in epoch {epoch}, {sum(p.sum() for p in model.parameters()).item():.9f}")
