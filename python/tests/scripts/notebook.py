"""A run with a loading process. A notebook has the lines before the loop as a cell."""

import torch
from torch import nn

import everstep


class Numbers:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index / 64.0]) + torch.rand(1)


torch.manual_seed(1)
model = nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.5), nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
run = everstep.Run(
    model, optimizer, data=Numbers(), steps=60, data_shards=2, micro_batch=4, loaders=1,
    name="notebook",
)
# The loop.
for x in run:
    run.backward((model(x) - 3 * x).square().mean())
