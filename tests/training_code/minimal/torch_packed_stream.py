"""Documents packed into sequences: a stream whose `state_dict` has the documents, and not how many it has yielded."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, IterableDataset

import worker.torch


class Packed(IterableDataset):
    def __init__(self, documents, length=6):
        self.documents, self.length = documents, length
        self.next_document, self.tokens = 0, []

    def __iter__(self):
        count = 0
        while count < 24:
            while len(self.tokens) <= self.length:
                self.tokens = self.tokens + self.documents[self.next_document % len(self.documents)]
                self.next_document += 1
            sequence, self.tokens = self.tokens[: self.length + 1], self.tokens[self.length + 1 :]
            count += 1
            yield torch.tensor(sequence)

    def state_dict(self):
        return {"next_document": self.next_document, "tokens": self.tokens}

    def load_state_dict(self, state):
        self.next_document, self.tokens = state["next_document"], state["tokens"]


worker.torch.prepare(6)
lengths = torch.randint(10, 20, (20,)).tolist()
loader = DataLoader(Packed([torch.randint(0, 12, (length,)).tolist() for length in lengths]), batch_size=4)
embedding, rnn, head = nn.Embedding(12, 8), nn.GRU(8, 12, batch_first=True), nn.Linear(12, 12)
model = nn.ModuleList([embedding, rnn, head])
optimizer = torch.optim.NAdam(model.parameters(), lr=1e-2)

with worker.torch.Run(model=model, optimizer=optimizer, directory="checkpoints") as run:
    for epoch in run.epochs(4):
        for batch in run.batches(loader):
            logits = head(rnn(embedding(batch[:, :-1]))[0])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.step_done(loss=loss.item())

print(f"weights {sum(float(p.sum()) for p in model.parameters()):.9f}")
