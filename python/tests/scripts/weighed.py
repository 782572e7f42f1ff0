"""One step of micro-batches with unequal numbers of tokens, and the same tokens in one batch. If
the numbers are known at the backward pass alone, most samples have none."""

import sys

import plain_step
import torch
import torch.nn.functional as F
from torch import nn

import everstep

SHARDS, ROWS, ACCUMULATE, LONGEST, KINDS = 3, 2, 2, 9, 8
IS_KNOWN_BEFORE = sys.argv[2] == "before"


class Sequences:
    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        text = (torch.arange(LONGEST + 1) * (1 + index % 3) + index) % KINDS
        targets = text[1:].clone()
        is_empty = not IS_KNOWN_BEFORE and index < 40
        targets[0 if is_empty else 1 + index % LONGEST :] = -100
        return text[:-1], targets


def make() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Embedding(KINDS, 8), nn.Linear(8, KINDS))


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


data, model = Sequences(), make()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = everstep.Run(
    model, optimizer, data=data, steps=1, data_shards=SHARDS, micro_batch=ROWS,
    accumulate=ACCUMULATE,
    weights=[1 + index % LONGEST for index in range(len(data))] if IS_KNOWN_BEFORE else None,
)
for x, y in run:
    run.backward(loss_of(model, x, y), weight=int((y >= 0).sum()))
trained = [parameter.detach().clone() for parameter in model.parameters()]

places = [(1, shard, micro) for shard in range(SHARDS) for micro in range(ACCUMULATE)]
rows = [data[index] for place in places for _, index in run._engine.rows(*place)]
model = make()
loss = loss_of(model, torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows]))
plain_step.write(sys.argv[1], model, loss, trained)
