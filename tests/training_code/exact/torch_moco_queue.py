"""Contrastive learning with a momentum encoder and a queue of keys, which is a tensor beside the models."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

import worker.torch

worker.torch.prepare(51)
K, momentum, temperature = 32, 0.95, 0.2
encoder_q = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
encoder_k = copy.deepcopy(encoder_q).requires_grad_(False)
queue = F.normalize(torch.randn(4, K), dim=0)
queue_ptr = torch.zeros(1, dtype=torch.long)
optimizer = torch.optim.SGD(encoder_q.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
data = torch.randn(48, 8)


@torch.no_grad()
def dequeue_and_enqueue(keys):
    ptr = int(queue_ptr)
    queue[:, ptr : ptr + keys.shape[0]] = keys.T
    queue_ptr[0] = (ptr + keys.shape[0]) % K


def augment(x):
    return x + 0.1 * torch.randn_like(x)


state = {"queue": queue, "queue_ptr": queue_ptr}
with worker.torch.Run(q=encoder_q, k=encoder_k, optimizer=optimizer, state=state, directory="checkpoints") as run:
    for epoch in run.epochs(5):
        for images in run.batches(data, batch_size=8, seed=4):
            q = F.normalize(encoder_q(augment(images)), dim=1)
            with torch.no_grad():
                for param_q, param_k in zip(encoder_q.parameters(), encoder_k.parameters()):
                    param_k.data.mul_(momentum).add_(param_q.data, alpha=1 - momentum)
                k = F.normalize(encoder_k(augment(images)), dim=1)
            l_pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
            l_neg = torch.einsum("nc,ck->nk", [q, queue.clone()])
            logits = torch.cat([l_pos, l_neg], dim=1) / temperature
            loss = F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            dequeue_and_enqueue(k)
            run.step_done(loss=loss.item())

print(f"queue {queue.sum().item():.9f}, weights {sum(p.sum() for p in encoder_q.parameters()).item():.9f}")
