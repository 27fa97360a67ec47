"""The NoamOpt class of the annotated transformer, which counts its own steps, around Adam."""

import torch
from torch import nn

import worker.torch

worker.torch.prepare(31)


class NoamOpt:
    "Optim wrapper that implements rate."

    def __init__(self, model_size, factor, warmup, optimizer):
        self.optimizer = optimizer
        self._step = 0
        self.warmup = warmup
        self.factor = factor
        self.model_size = model_size
        self._rate = 0

    def step(self):
        "Update parameters and rate"
        self._step += 1
        rate = self.rate()
        for p in self.optimizer.param_groups:
            p["lr"] = rate
        self._rate = rate
        self.optimizer.step()

    def state_dict(self):
        return {"step": self._step, "rate": self._rate}

    def load_state_dict(self, state):
        self._step, self._rate = state["step"], state["rate"]

    def rate(self, step=None):
        "Implement `lrate` above"
        if step is None:
            step = self._step
        return self.factor * (self.model_size ** (-0.5) * min(step ** (-0.5), step * self.warmup ** (-1.5)))


class Tagger(nn.Module):
    def __init__(self, vocabulary=11, d_model=8):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, d_model)
        self.layer = nn.TransformerEncoderLayer(d_model, nhead=2, dim_feedforward=16, dropout=0.1, batch_first=True)
        self.out = nn.Linear(d_model, vocabulary)

    def forward(self, tokens):
        return self.out(self.layer(self.embed(tokens)))


model = Tagger()
adam = torch.optim.Adam(model.parameters(), lr=0, betas=(0.9, 0.98), eps=1e-9)
model_opt = NoamOpt(8, 1.0, 12, adam)
criterion = nn.CrossEntropyLoss()
sequences = torch.randint(0, 11, (36, 6))
with worker.torch.Run(model=model, optimizer=adam, noam=model_opt, directory="checkpoints") as run:
    for epoch in run.epochs(4):
        for tokens in run.batches(sequences, batch_size=6, seed=1):
            loss = criterion(model(tokens).flatten(0, 1), tokens.flip(1).flatten())
            model_opt.optimizer.zero_grad()
            loss.backward()
            model_opt.step()
            run.step_done(loss=loss.item())

print(
    f"rate {model_opt._rate:.9f} after {model_opt._step} steps, weights {sum(p.sum() for p in model.parameters()).item():.9f}"
)
