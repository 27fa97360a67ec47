"""Distillation from a frozen teacher, which is left out: it never changes, and the script makes it at each start."""

import torch
import torch.nn.functional as F
from torch import nn

import worker.torch

worker.torch.prepare(61)
teacher = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 5)).eval().requires_grad_(False)
student = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 5))
optimizer = torch.optim.AdamW(student.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=24)
data = torch.utils.data.TensorDataset(torch.randn(48, 6))
T, alpha = 3.0, 0.7

parts = {"student": student, "optimizer": optimizer, "scheduler": scheduler}
with worker.torch.Run(**parts, leave_out=[teacher], directory="checkpoints") as run:
    for epoch in run.epochs(4):
        student.train()
        for (x,) in run.batches(torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)):
            with torch.no_grad():
                teacher_logits = teacher(x)
            student_logits = student(x)
            soft_targets = F.softmax(teacher_logits / T, dim=-1)
            soft_prob = F.log_softmax(student_logits / T, dim=-1)
            distillation = torch.sum(soft_targets * (soft_targets.log() - soft_prob)) / len(x) * T**2
            label_loss = F.cross_entropy(student_logits, teacher_logits.argmax(dim=1))
            loss = alpha * distillation + (1 - alpha) * label_loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            run.step_done(loss=loss.item())

print(f"weights {sum(p.sum() for p in student.parameters()).item():.9f}")
