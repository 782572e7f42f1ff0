"""Trains with Everstep, and then the same in a plain loop: two data shards, so that a step adds two
gradients, whose order does not matter. With clipping there are four of them, and it does."""

import os
import sys

import torch
from torch import nn, optim

import everstep

kind, path, plain = sys.argv[1:]
STEPS, ROWS = 50, 4
SHARDS, CLIP_NORM = (4, 0.02) if kind == "clipped" else (2, None)
OPTIMIZERS = {
    "adamw": lambda groups: optim.AdamW(groups, lr=1e-2, weight_decay=0.01, fused=True),
    "amsgrad": lambda groups: optim.AdamW(groups, lr=1e-2, amsgrad=True, maximize=True, fused=True),
    # The formula of the fused kernel with decay in the gradient.
    "adam": lambda groups: optim.Adam(groups, lr=1e-2, weight_decay=0.01, fused=True),
    "dampened": lambda groups: optim.SGD(groups, lr=1e-2, momentum=0.9, dampening=0.3),
    "lion": lambda groups: LION(groups, lr=1e-3, weight_decay=0.01),
    "sgd": lambda groups: optim.SGD(groups, lr=1e-2, momentum=0.9),
    "nesterov": lambda groups: optim.SGD(groups, lr=1e-2, momentum=0.9, nesterov=True),
    "batchnorm": lambda groups: optim.SGD(groups, lr=1e-2, momentum=0.9),
    "onecycle": lambda groups: optim.AdamW(groups, lr=1e-2, fused=True),
    "clipped": lambda groups: optim.AdamW(groups, lr=1e-2, fused=True),
    "nadam": lambda groups: optim.NAdam(groups, lr=1e-2),
    "radam": lambda groups: optim.RAdam(groups, lr=1e-2, decoupled_weight_decay=True),
    "adamax": lambda groups: optim.Adamax(groups, lr=1e-2),
    "rmsprop": lambda groups: optim.RMSprop(groups, lr=1e-3, momentum=0.9, centered=True),
    "adagrad": lambda groups: optim.Adagrad(
        groups, lr=1e-2, lr_decay=0.01, initial_accumulator_value=0.1
    ),
    "adadelta": lambda groups: optim.Adadelta(groups, lr=1.0),
    "asgd": lambda groups: optim.ASGD(groups, lr=1e-2, lambd=1e-2, t0=10),
    "rprop": lambda groups: optim.Rprop([p for group in groups for p in group["params"]], lr=1e-3),
}


class PlainLion(everstep.Lion):
    """Algorithm 2 of the paper."""

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                moment = self.state[p].setdefault("moment", torch.zeros_like(p))
                change = (first * moment + (1 - first) * p.grad).sign()
                p.sub_(group["lr"] * (change + group["weight_decay"] * p))
                moment.copy_(second * moment + (1 - second) * p.grad)


LION = everstep.Lion


class Numbers:
    def __len__(self) -> int:
        return 128

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(16)


def make():
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
    groups = [{"params": list(model[0].parameters())}, {"params": list(model[2].parameters())}]
    if kind != "rprop":
        groups[0]["weight_decay"] = 0.1
    if kind == "batchnorm":
        model.insert(1, nn.BatchNorm1d(64, affine=False))
    optimizer = OPTIMIZERS[kind](groups)
    if kind == "onecycle":
        rates = optim.lr_scheduler.OneCycleLR(optimizer, [1e-2, 2e-2], total_steps=STEPS)
        return model, optimizer, rates
    return model, optimizer, optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)


def loss_of(model, x):
    return (model(x) - x.flip(1)).square().mean()


model, optimizer, schedule = make()
run = everstep.Run(
    model, optimizer, schedule, data=Numbers(), steps=STEPS, data_shards=SHARDS, micro_batch=ROWS,
    clip_norm=CLIP_NORM,
)
for x in run:
    run.backward(loss_of(model, x))
run.save(path)

# The plain loop, on the samples of the same plan.
from everstep import data, seeds  # noqa: E402

LION = PlainLion
model, optimizer, schedule = make()
batches = data.Batches(data.SeededDataset(Numbers(), 1), run._engine.rows, 1, 0, None)
for step in range(1, STEPS + 1):
    optimizer.zero_grad()
    before = {name: it.clone() for name, it in model.named_buffers()}
    after = {name: torch.zeros_like(it) for name, it in before.items()}
    for shard in range(SHARDS):
        x = batches.of((step, shard, 0))
        (loss_of(model, x) / SHARDS).backward()
        for name, it in model.named_buffers():
            after[name] += it
            it.copy_(before[name])
    for name, it in model.named_buffers():
        it.copy_(after[name] / SHARDS)
    if CLIP_NORM is not None:
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        assert step > 1 or norm > CLIP_NORM
    optimizer.step()
    schedule.step()
partial = f"{plain}-{os.getpid()}"
torch.save(model.state_dict(), partial)
os.replace(partial, plain)
