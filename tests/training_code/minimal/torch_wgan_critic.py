"""A Wasserstein GAN with clipped weights: the generator is trained after every n_critic batches."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import worker.torch

worker.torch.prepare(8)
latent_dim, n_critic, clip_value, n_epochs = 4, 3, 0.05, 3

generator = nn.Sequential(nn.Linear(latent_dim, 16), nn.LeakyReLU(0.2), nn.Linear(16, 2))
discriminator = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
optimizer_G = torch.optim.RMSprop(generator.parameters(), lr=5e-4)
optimizer_D = torch.optim.RMSprop(discriminator.parameters(), lr=5e-4)
dataloader = DataLoader(TensorDataset(torch.randn(80, 2) * 0.3 + 1.0), batch_size=8, shuffle=True)

parts = {"generator": generator, "discriminator": discriminator, "g_opt": optimizer_G, "d_opt": optimizer_D}
with worker.torch.Run(**parts, directory="checkpoints") as run:
    for epoch in run.epochs(n_epochs):
        for i, (real,) in enumerate(run.batches(dataloader)):
            optimizer_D.zero_grad()
            z = torch.randn(real.shape[0], latent_dim)
            fake = generator(z).detach()
            loss_D = -torch.mean(discriminator(real)) + torch.mean(discriminator(fake))
            loss_D.backward()
            optimizer_D.step()
            for p in discriminator.parameters():
                p.data.clamp_(-clip_value, clip_value)

            if i % n_critic == 0:
                optimizer_G.zero_grad()
                loss_G = -torch.mean(discriminator(generator(z)))
                loss_G.backward()
                optimizer_G.step()
            run.step_done(loss_D=loss_D.item())

with torch.no_grad():
    print(f"mean {generator(torch.ones(1, latent_dim)).sum():.9f}")
