"""The shape of PyTorch's style transfer: LBFGS with a closure that counts in a list."""

import torch
from torch import nn, optim

import worker.torch

worker.torch.prepare(121)
features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval().requires_grad_(False)
content_img, style_img = torch.rand(1, 1, 10, 10), torch.rand(1, 1, 10, 10)


def gram_matrix(input):
    flat = input.flatten(2)[0]
    return flat @ flat.t() / flat.numel()


class Picture(nn.Module):
    def __init__(self, image):
        super().__init__()
        self.image = nn.Parameter(image.clone())


picture = Picture(content_img)
optimizer = optim.LBFGS([picture.image], max_iter=4)
content, style = features(content_img), gram_matrix(features(style_img))
num_steps = 60
it = [0]
with worker.torch.Run(picture=picture, optimizer=optimizer, leave_out=[features], directory="checkpoints") as run:
    while it[0] <= num_steps:

        def closure():
            optimizer.zero_grad()
            out = features(picture.image)
            loss = (out - content).pow(2).mean() + 1000 * (gram_matrix(out) - style).pow(2).sum()
            loss.backward()
            it[0] += 1
            return loss

        loss = optimizer.step(closure)
        run.step_done(loss=loss.item())

print(f"picture {picture.image.sum().item():.9f} after {it[0]} evaluations")
