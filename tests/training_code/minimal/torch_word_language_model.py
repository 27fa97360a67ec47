"""The shape of PyTorch's word language model: the hidden state goes from one piece of the text to the next."""

import torch
from torch import nn

import worker.torch

worker.torch.prepare(41)


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid):
        super().__init__()
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid)
        self.decoder = nn.Linear(nhid, ntoken)
        self.nhid = nhid

    def forward(self, input, hidden):
        output, hidden = self.rnn(self.encoder(input), hidden)
        return self.decoder(output).view(-1, self.decoder.out_features), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return (weight.new_zeros(1, bsz, self.nhid), weight.new_zeros(1, bsz, self.nhid))


def repackage_hidden(h):
    """Wraps hidden states in new Tensors, to detach them from their history."""
    return tuple(v.detach() for v in h)


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    return data.narrow(0, 0, nbatch * bsz).view(bsz, -1).t().contiguous()


ntokens, bptt, batch_size, lr = 9, 5, 4, 1.0
train_data = batchify(torch.randint(0, ntokens, (4 * 51,)), batch_size)
pieces = [(train_data[i : i + bptt], train_data[i + 1 : i + 1 + bptt].reshape(-1)) for i in range(0, 50, bptt)]
model = RNNModel(ntokens, 6, 8)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
with worker.torch.Run(model=model, optimizer=optimizer, directory="checkpoints") as run:
    for epoch in run.epochs(3):
        model.train()
        hidden = model.init_hidden(batch_size)
        for data, targets in run.batches(torch.utils.data.DataLoader(pieces, batch_size=1, collate_fn=lambda b: b[0])):
            model.zero_grad()
            hidden = repackage_hidden(hidden)
            output, hidden = model(data, hidden)
            loss = criterion(output, targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
            run.step_done(loss=loss.item())

print(f"weights {sum(p.sum() for p in model.parameters()).item():.9f}")
