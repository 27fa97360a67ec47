"""Neural style: the image itself is trained, by Adam."""

import torch
from torch import nn

import worker.torch

worker.torch.prepare(3)
content, style = torch.randn(1, 3, 6, 6), torch.randn(1, 3, 6, 6)
net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).requires_grad_(False)
image = content.clone().requires_grad_(True)
optimizer = torch.optim.Adam([image], lr=0.05)


def gram(x):
    f = x.flatten(2)
    return f @ f.transpose(1, 2)


with torch.no_grad():
    target, goal = net(content), gram(net(style))
with worker.torch.Run(optimizer=optimizer, directory="checkpoints", leave_out=[net], state={"image": image}) as run:
    for step in run.range(30):
        optimizer.zero_grad()
        features = net(image)
        loss = ((features - target) ** 2).mean() + 1e-3 * ((gram(features) - goal) ** 2).mean()
        loss.backward()
        optimizer.step()
        run.step_done(loss=loss.item())
print(f"{image.sum().item():.9f}")
