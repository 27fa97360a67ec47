"""accelerate's gradient accumulation: prepare, accumulate, a scheduler that steps with the optimizer, evaluation."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.sampler import WeightedRandomSampler

torch.manual_seed(0)
generator = torch.Generator().manual_seed(1)
inputs = torch.randn(230, 16, generator=generator)
labels = (inputs.sum(1) > 0).long()
train_data = TensorDataset(inputs[:190], labels[:190])
weights = torch.where(labels[:190] == 1, 2.0, 1.0)
train_loader = DataLoader(train_data, batch_size=10, sampler=WeightedRandomSampler(weights, 190))
eval_loader = DataLoader(TensorDataset(inputs[190:], labels[190:]), batch_size=20)

accelerator = Accelerator(gradient_accumulation_steps=4)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.9)
model, optimizer, train_loader, eval_loader, scheduler = accelerator.prepare(
    model, optimizer, train_loader, eval_loader, scheduler
)

for epoch in range(3):
    model.train()
    for batch, target in train_loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(batch), target)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    model.eval()
    correct = 0
    for batch, target in eval_loader:
        with torch.no_grad():
            predictions = model(batch).argmax(1)
        predictions, target = accelerator.gather_for_metrics((predictions, target))
        correct += int((predictions == target).sum())
    accelerator.print(f"epoch {epoch}: accuracy {correct / 40:.2f}")
