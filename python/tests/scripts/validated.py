"""Validates on held-out samples one by one, and once more in a plain loop. The running statistics
of its batch norm are those of all data shards."""

import sys

import torch
from torch import nn

import everstep


class Numbers:
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index / self.count, index % 3])


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (model(x) - x.flip(1)).square().mean()


def make() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.GELU(), nn.Linear(8, 2))


model, held_out = make(), Numbers(37)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
run = everstep.Run(
    model, optimizer, data=Numbers(64), validation=held_out, steps=10, data_shards=4, micro_batch=4
)


@run.evaluate(every=int(sys.argv[1]) if len(sys.argv) > 1 else None)
def evaluate(x: torch.Tensor) -> torch.Tensor:
    assert not model.training and not torch.is_grad_enabled()
    return loss_of(model, x)


for x in run:
    assert model.training
    run.log(first=x[:, 0].mean())
    run.backward(loss_of(model, x))
plain = make().eval()
plain.load_state_dict(model.state_dict())
with torch.no_grad():
    losses = [float(loss_of(plain, held_out[index][None])) for index in range(len(held_out))]
print("plain", sum(losses) / len(losses))
