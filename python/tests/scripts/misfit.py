"""A script with weights or held-out samples that do not fit."""

import sys

import torch
from torch import nn

import everstep

fault = sys.argv[1]


class Numbers:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index / 64.0])


torch.manual_seed(1)
model = nn.Linear(1, 1)
run = everstep.Run(
    model, torch.optim.SGD(model.parameters(), lr=0.01), data=Numbers(), steps=3, data_shards=2,
    micro_batch=4, validation=Numbers() if fault in ("unmarked", "odd", "never") else None,
    weights={"few": [1, 2], "weight": [1.0] * 64}.get(fault),
)
if fault in ("nothing", "odd"):
    run.evaluate(lambda x: {"loss": 0.0, "one": 1.0, "two": 2.0})
if fault == "never":
    run.evaluate(every=0)(lambda x: 0.0)
for number, x in enumerate(run):
    loss = (model(x) - x).square().mean()
    stated = {"weight": 3.5, "mixed": 2.0 if number == 0 else None, "negative": -1.0}
    run.backward(loss, weight=stated.get(fault))
