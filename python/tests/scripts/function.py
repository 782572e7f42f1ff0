"""`everstep.train` on sequences of unequal lengths, with a mean over the tokens of a step as the loss."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

import everstep

mode, path = sys.argv[1], sys.argv[2]
LONGEST, KINDS = 12, 16


class Sequences:
    def __init__(self, count: int, begin: int) -> None:
        self.count, self.begin = count, begin

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        length = 2 + (index * 5) % (LONGEST - 1)
        text = (torch.arange(LONGEST + 1) * (1 + index % 3) + index + self.begin) % KINDS
        targets = text[1:].clone()
        targets[length:] = -100  # padding
        return text[:-1], targets


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.drop = nn.Embedding(KINDS, 16), nn.Dropout(0.2)
        self.out = nn.Linear(16, KINDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.drop(F.gelu(self.tokens(x))))


def loss(model: nn.Module, batch):
    x, y = batch
    logits = model(x)
    hits = (logits.argmax(2) == y).float().sum() / (y >= 0).sum()
    return F.cross_entropy(logits.flatten(0, 1), y.flatten()), {"accuracy": hits}


def tokens(data: Sequences) -> list[int]:
    return [int((data[index][1] >= 0).sum()) for index in range(len(data))]


data, held_out = Sequences(96, 0), Sequences(40, 7)
turns: list[float] = []
report = everstep.train(
    model=Net,
    loss=loss,
    optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
    schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 10),
    data=data,
    validation=held_out,
    weights=tokens(data) if mode == "tokens" else None,
    callbacks=[lambda run, value: turns.append(value)],
    save=path,
    steps=30,
    data_shards=4,
    micro_batch=3,
    accumulate=2,
)
assert turns, "each process has computed something"
print("state", report.state_hash)
