"""A pair of networks in the shape of CycleGAN, whose discriminator sees a pool of earlier images."""

import random

import torch
from torch import nn

import worker.torch

worker.torch.prepare(101)


class ImagePool:
    def __init__(self, pool_size):
        self.pool_size = pool_size
        self.num_imgs = 0
        self.images = []

    def query(self, images):
        return_images = []
        for image in images:
            image = torch.unsqueeze(image.data, 0)
            if self.num_imgs < self.pool_size:
                self.num_imgs = self.num_imgs + 1
                self.images.append(image)
                return_images.append(image)
            elif random.uniform(0, 1) > 0.5:
                random_id = random.randint(0, self.pool_size - 1)
                return_images.append(self.images[random_id].clone())
                self.images[random_id] = image
            else:
                return_images.append(image)
        return torch.cat(return_images, 0)


class Model:
    def __init__(self):
        self.netG = nn.Linear(6, 6)
        self.netD = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
        self.fake_pool = ImagePool(10)
        self.optimizer_G = torch.optim.Adam(self.netG.parameters(), lr=2e-3, betas=(0.5, 0.999))
        self.optimizer_D = torch.optim.Adam(self.netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
        self.criterion = nn.MSELoss()

    def set_input(self, real):
        self.real_A, self.real_B = real

    def optimize_parameters(self):
        self.fake_B = self.netG(self.real_A)
        prediction = self.netD(self.fake_B)
        self.loss_G = self.criterion(prediction, torch.ones_like(prediction))
        self.optimizer_G.zero_grad()
        self.loss_G.backward()
        self.optimizer_G.step()
        pooled = self.netD(self.fake_pool.query(self.fake_B))
        genuine = self.netD(self.real_B)
        self.loss_D = self.criterion(pooled, torch.zeros_like(pooled)) + self.criterion(
            genuine, torch.ones_like(genuine)
        )
        self.optimizer_D.zero_grad()
        self.loss_D.backward()
        self.optimizer_D.step()


model = Model()
dataset = torch.utils.data.TensorDataset(torch.randn(40, 6), torch.randn(40, 6).abs())
parts = {"G": model.netG, "D": model.netD, "opt_G": model.optimizer_G, "opt_D": model.optimizer_D}
with worker.torch.Run(**parts, directory="checkpoints") as run:
    for epoch in run.epochs(4):
        for data in run.batches(dataset, batch_size=4, seed=1):
            model.set_input(data)
            model.optimize_parameters()
            run.step_done(loss_D=model.loss_D.item())

print(f"pool {torch.cat(model.fake_pool.images).sum().item():.9f}")
