"""Trains with Everstep, and goes on in a plain loop from the export."""

import os
import sys
from pathlib import Path

import torch
from torch import nn

import everstep
from everstep import data, safetensors

kind, steps, path, plain = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
STEPS, SHARDS, ROWS = 25, 2, 4


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
        groups[0]["amsgrad"] = True
        optimizer = torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.01, fused=True)
    elif kind == "nadam":
        model.insert(1, nn.BatchNorm1d(64, affine=False))
        optimizer = torch.optim.NAdam(groups, lr=1e-2)
    elif kind == "rmsprop":
        optimizer = torch.optim.RMSprop(groups, lr=1e-3, momentum=0.9, centered=True)
    else:
        optimizer = torch.optim.SGD(groups, lr=1e-2, momentum=0.9, nesterov=True)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)


def loss_of(model, x):
    return (model(x) - x.flip(1)).square().mean()


model, optimizer, schedule = make()
run = everstep.Run(
    model, optimizer, schedule, data=Numbers(), steps=steps, data_shards=SHARDS, micro_batch=ROWS
)
for x in run:
    run.backward(loss_of(model, x))
if plain == "-":
    run.save(path)
    sys.exit()
run.export(path)

# The plain loop, on the samples of the same plan.
found = torch.load(path)
assert found["step"] == steps
trained = safetensors.read_f32(Path(os.environ["EVERSTEP_DIR"]) / "model.safetensors")
assert found["model"].keys() == trained.keys()
assert all(torch.equal(found["model"][name].float(), trained[name]) for name in trained)
model, optimizer, schedule = make()
model.load_state_dict(found["model"])
optimizer.load_state_dict(found["optimizer"])
schedule.load_state_dict(found["schedule"])
batches = data.Batches(data.SeededDataset(Numbers(), 1), run._engine.rows, 1, 0, None)
for step in range(steps + 1, STEPS + 1):
    optimizer.zero_grad()
    for shard in range(SHARDS):
        (loss_of(model, batches.of((step, shard, 0))) / SHARDS).backward()
    optimizer.step()
    schedule.step()
partial = f"{plain}-{os.getpid()}"
torch.save(model.state_dict(), partial)
os.replace(partial, plain)
