"""A vector-quantized autoencoder whose codebook is a plain tensor of the module, moved by averages."""

import torch
import torch.nn.functional as F
from torch import nn

import worker.torch

worker.torch.prepare(9)


class VectorQuantizer(nn.Module):
    def __init__(self, num_embeddings, embedding_dim, decay=0.9):
        super().__init__()
        self.decay = decay
        self.codebook = torch.randn(num_embeddings, embedding_dim)
        self.cluster_size = torch.ones(num_embeddings)
        self.embed_avg = self.codebook.clone()

    def forward(self, z):
        distances = torch.cdist(z, self.codebook)
        indices = distances.argmin(dim=1)
        quantized = self.codebook[indices]
        if self.training:
            onehot = F.one_hot(indices, len(self.codebook)).float()
            self.cluster_size = self.decay * self.cluster_size + (1 - self.decay) * onehot.sum(0)
            self.embed_avg = self.decay * self.embed_avg + (1 - self.decay) * onehot.T @ z.detach()
            self.codebook = self.embed_avg / (self.cluster_size.unsqueeze(1) + 1e-3)
        commitment = F.mse_loss(z, quantized.detach())
        return z + (quantized - z).detach(), commitment


class VQVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4))
        self.quantizer = VectorQuantizer(8, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 10))

    def forward(self, x):
        quantized, commitment = self.quantizer(self.encoder(x))
        return F.mse_loss(self.decoder(quantized), x) + 0.25 * commitment


model = VQVAE()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
data = torch.randn(60, 10)
with worker.torch.Run(model=model, optimizer=optimizer, directory="checkpoints") as run:
    for epoch in run.epochs(5):
        for batch in run.batches(data, batch_size=12, seed=1):
            optimizer.zero_grad()
            loss = model(batch)
            loss.backward()
            optimizer.step()
            run.step_done(loss=loss.item())

print(f"codebook {model.quantizer.codebook.sum().item():.9f}")
