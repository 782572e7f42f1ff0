"""LoRA: trains changes of low rank to the frozen matrices of a model.

    everstep launch --workers 2 --respawn lora.py --rank 4

Only the changes travel between workers. The frozen weights are in each process, and all processes
must have the same.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

import everstep


class LowRank(nn.Module):
    """A frozen linear layer, and a change of it that is a product of two thin matrices."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


def adapt(module: nn.Module, rank: int) -> None:
    """Puts a change beside each linear layer of a module."""
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, LowRank(child, rank))
        else:
            adapt(child, rank)


class Sums:
    """Pairs of numbers, and whether their sum is large."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        x = torch.rand(16)
        return x, int(x.sum() > 8.0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rank", type=int, default=4)
    flags = parser.parse_args()
    torch.manual_seed(1)
    # In the place of a pretrained model: model.load_state_dict(torch.load(...)).
    layers = nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2)
    model = nn.Sequential(*layers)
    model.requires_grad_(False)
    adapt(model, flags.rank)
    changes = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(changes, lr=1e-2, weight_decay=0.0)
    run = everstep.Run(
        model, optimizer, data=Sums(), steps=flags.steps, data_shards=4, micro_batch=8
    )
    for x, y in run:
        run.backward(F.cross_entropy(model(x), y))
    torch.save({name: p for name, p in model.named_parameters() if p.requires_grad}, "lora.pt")
    print("hash", run.report.state_hash)


if __name__ == "__main__":
    main()
