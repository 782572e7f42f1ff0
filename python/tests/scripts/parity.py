"""Trains with Everstep, and then the same in a plain loop: two data shards, so that a step adds two
gradients, whose order does not matter."""

import os
import sys

import torch
from torch import nn

import everstep

kind, path, plain = sys.argv[1:]
STEPS, SHARDS, ROWS = 20, 2, 4


class Numbers:
    def __len__(self) -> int:
        return 128

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(16)


def make():
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
    groups = [{"params": model[0].parameters(), "weight_decay": 0.1}, {"params": model[2].parameters()}]
    if kind == "adamw":
        optimizer = torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.01, fused=True)
    else:
        optimizer = torch.optim.SGD(groups, lr=1e-2, momentum=0.9, nesterov=kind == "nesterov")
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)


def loss_of(model, x):
    return (model(x) - x.flip(1)).square().mean()


model, optimizer, schedule = make()
run = everstep.Run(
    model, optimizer, schedule, data=Numbers(), steps=STEPS, data_shards=SHARDS, micro_batch=ROWS
)
for x in run:
    run.backward(loss_of(model, x))
run.save(path)

# The plain loop, on the samples of the same plan.
from everstep import data, seeds  # noqa: E402

model, optimizer, schedule = make()
batches = data.Batches(data.Keyed(Numbers(), 1), run._engine.rows, 1, 0, None)
for step in range(1, STEPS + 1):
    optimizer.zero_grad()
    for shard in range(SHARDS):
        x = batches.of((step, shard, 0))
        (loss_of(model, x) / SHARDS).backward()
    optimizer.step()
    schedule.step()
partial = f"{plain}-{os.getpid()}"
torch.save(model.state_dict(), partial)
os.replace(partial, plain)
