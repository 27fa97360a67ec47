"""The shape of PyTorch's seq2seq tutorial: random pairs, teacher forcing by chance, totals for printing and plots."""

import random

import torch
import torch.nn as nn
from torch import optim

import worker.torch

worker.torch.prepare(111)
teacher_forcing_ratio = 0.5
pairs = [(torch.tensor([i, (i * 3) % 7, i % 4]), torch.tensor([i % 4, (i * 3) % 7, i])) for i in range(7)]


class Seq2Seq(nn.Module):
    def __init__(self, tokens=7, hidden_size=10):
        super().__init__()
        self.embedding = nn.Embedding(tokens, hidden_size)
        self.encoder = nn.GRU(hidden_size, hidden_size)
        self.decoder = nn.GRU(hidden_size, hidden_size)
        self.out = nn.Linear(hidden_size, tokens)

    def forward(self, source, target, criterion):
        _, hidden = self.encoder(self.embedding(source).unsqueeze(1))
        token, loss = torch.tensor(0), 0
        use_teacher_forcing = random.random() < teacher_forcing_ratio
        for expected in target:
            output, hidden = self.decoder(self.embedding(token).view(1, 1, -1), hidden)
            logits = self.out(output[0])
            loss += criterion(logits, expected.unsqueeze(0))
            token = expected if use_teacher_forcing else logits.argmax().detach()
        return loss / len(target)


def trainIters(model, n_iters, print_every=10, plot_every=5, learning_rate=0.05):
    state = {"plot_losses": [], "print_loss_total": 0, "plot_loss_total": 0}
    optimizer = optim.SGD(model.parameters(), lr=learning_rate)
    criterion = nn.CrossEntropyLoss()
    with worker.torch.Run(model=model, optimizer=optimizer, state=state, directory="checkpoints") as run:
        for iter in range(run.step + 1, n_iters + 1):
            source, target = random.choice(pairs)
            optimizer.zero_grad()
            loss = model(source, target, criterion)
            loss.backward()
            optimizer.step()
            run.state["print_loss_total"] += loss.item()
            run.state["plot_loss_total"] += loss.item()
            if iter % print_every == 0:
                print(f"({iter} {iter / n_iters * 100:.0f}%) {run.state['print_loss_total'] / print_every:.4f}")
                run.state["print_loss_total"] = 0
            if iter % plot_every == 0:
                run.state["plot_losses"].append(run.state["plot_loss_total"] / plot_every)
                run.state["plot_loss_total"] = 0
            run.step_done(loss=loss.item())
    return run.state["plot_losses"]


print("losses", " ".join(f"{loss:.6f}" for loss in trainIters(Seq2Seq(), 30)))
