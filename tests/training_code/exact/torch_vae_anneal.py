"""A variational autoencoder whose KL weight is annealed by a method of the model."""

import torch
import torch.nn.functional as F
from torch import nn

import worker.torch

worker.torch.prepare(21)


class VAE(nn.Module):
    def __init__(self, features=12, latent=3):
        super().__init__()
        self.encoder = nn.Linear(features, 2 * latent)
        self.decoder = nn.Linear(latent, features)
        self.register_buffer("kl_weight", torch.tensor(0.0))

    def anneal(self, rate=0.05):
        self.kl_weight = torch.clamp(self.kl_weight + rate, max=1.0)

    def forward(self, x):
        mean, log_var = self.encoder(x).chunk(2, dim=1)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        kl = -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum(dim=1).mean()
        return F.mse_loss(self.decoder(z), x, reduction="sum") / len(x) + self.kl_weight * kl


data = torch.randn(64, 12) @ torch.randn(12, 12) * 0.3
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
with worker.torch.Run(model=model, optimizer=optimizer, directory="checkpoints") as run:
    for epoch in run.epochs(3):
        for batch in run.batches(data, batch_size=8, seed=3):
            optimizer.zero_grad()
            loss = model(batch)
            loss.backward()
            optimizer.step()
            model.anneal()
            run.step_done(loss=loss.item())

print(f"KL weight {float(model.kl_weight):.4f}, weights {sum(p.sum() for p in model.parameters()).item():.9f}")
