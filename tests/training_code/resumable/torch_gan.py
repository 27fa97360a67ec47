"""PyTorch's DCGAN tutorial: two networks and optimizers, noise in the step, lists of losses, images every so often."""

import torch
from sklearn.datasets import load_digits
from torch import nn, optim

from worker import torch as stepkeeper

manualSeed = 999
stepkeeper.prepare(manualSeed)
batch_size = 64
nz = 10
num_epochs = 3
lr = 0.0002
beta1 = 0.5

images = torch.tensor(load_digits().images / 8.0 - 1.0, dtype=torch.float32).unsqueeze(1)
dataset = torch.utils.data.TensorDataset(images)
dataloader = torch.utils.data.DataLoader(dataset, batch_size=batch_size, shuffle=True, num_workers=0)


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        nn.init.normal_(m.weight.data, 0.0, 0.02)
    elif classname.find("BatchNorm") != -1:
        nn.init.normal_(m.weight.data, 1.0, 0.02)
        nn.init.constant_(m.bias.data, 0)


netG = nn.Sequential(
    nn.ConvTranspose2d(nz, 16, 4, 1, 0, bias=False),
    nn.BatchNorm2d(16),
    nn.ReLU(True),
    nn.ConvTranspose2d(16, 1, 4, 2, 1, bias=False),
    nn.Tanh(),
)
netG.apply(weights_init)

netD = nn.Sequential(
    nn.Conv2d(1, 16, 4, 2, 1, bias=False),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(16, 1, 4, 1, 0, bias=False),
    nn.Sigmoid(),
)
netD.apply(weights_init)

criterion = nn.BCELoss()
fixed_noise = torch.randn(16, nz, 1, 1)
real_label = 1.0
fake_label = 0.0

optimizerD = optim.Adam(netD.parameters(), lr=lr, betas=(beta1, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=lr, betas=(beta1, 0.999))

print("Starting Training Loop...")
img_list = []
G_losses = []
D_losses = []
state = {"img_list": img_list, "G_losses": G_losses, "D_losses": D_losses}
with stepkeeper.Run(netG=netG, netD=netD, optimizerD=optimizerD, optimizerG=optimizerG, state=state) as run:
    for epoch in run.epochs(num_epochs):
        for i, data in enumerate(run.batches(dataloader), run.batch):
            netD.zero_grad()
            real = data[0]
            b_size = real.size(0)
            label = torch.full((b_size,), real_label, dtype=torch.float)
            output = netD(real).view(-1)
            errD_real = criterion(output, label)
            errD_real.backward()

            noise = torch.randn(b_size, nz, 1, 1)
            fake = netG(noise)
            label.fill_(fake_label)
            output = netD(fake.detach()).view(-1)
            errD_fake = criterion(output, label)
            errD_fake.backward()
            errD = errD_real + errD_fake
            optimizerD.step()

            netG.zero_grad()
            label.fill_(real_label)
            output = netD(fake).view(-1)
            errG = criterion(output, label)
            errG.backward()
            optimizerG.step()

            if i % 10 == 0:
                print(
                    f"[{epoch}/{num_epochs}][{i}/{len(dataloader)}] Loss_D: {errD.item():.4f} Loss_G: {errG.item():.4f}"
                )

            G_losses.append(errG.item())
            D_losses.append(errD.item())

            if (run.step % 25 == 0) or ((epoch == num_epochs - 1) and (i == len(dataloader) - 1)):
                with torch.no_grad():
                    fake = netG(fixed_noise).detach().cpu()
                img_list.append(fake.mean().item())

            run.step_done()

print(f"Generator's mean loss: {sum(G_losses) / len(G_losses):.6f}, images: {img_list}")
