"""A small convolutional network with running statistics and dropout, on random crops of noise with a
pattern. With --epochs=N, in place of 4. With --slow=FILE, each turn from step 20 on takes 0.2 s until there is
the file. With --gate=FILE, step 20 waits for the file, and the initial weights are the same by whichever
instructions."""

import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import everstep


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3, stride=2)
        self.norm1, self.norm2 = nn.BatchNorm2d(8), nn.BatchNorm2d(8, momentum=None)
        self.norm = nn.GroupNorm(2, 8)
        self.dropout = nn.Dropout(0.2)
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.out = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm2(self.two(F.relu(self.norm1(self.one(x)))))
        return self.out(self.frozen(self.dropout(F.relu(self.norm(x)).mean((2, 3)))))


class Images:
    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        kind = index % 4
        image = 0.1 * torch.rand(1, 16, 16)
        image[:, kind * 4 : kind * 4 + 4] += 1.0
        at = int(torch.randint(0, 4, ()))
        return image[:, at : at + 12, at : at + 12], kind


def main() -> None:
    torch.manual_seed(3)
    model = Net()
    flags = dict(it[2:].split("=", 1) for it in sys.argv if it.startswith("--"))
    gates = [Path(flags["gate"])] if "gate" in flags else []
    for number, parameter in enumerate(model.parameters() if gates else ()):
        plain = (torch.arange(parameter.numel()) * 7 + number) % 13
        parameter.data.copy_(plain.view(parameter.shape) / 13 - 0.5)
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9, nesterov=True,
        weight_decay=1e-4,
    )
    run = everstep.Run(model, optimizer, data=Images(), epochs=int(flags.get("epochs", 4)), data_shards=4, micro_batch=4)
    paths = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    for x, y in run:
        run.backward(F.cross_entropy(model(x), y))
        if "slow" in flags and run.step >= 20 and not Path(flags["slow"]).exists():
            time.sleep(0.2)
        while run.step >= 20 and not all(gate.exists() for gate in gates):
            time.sleep(0.01)
    assert run.steps == 6 * int(flags.get("epochs", 4))
    assert int(model.norm1.num_batches_tracked) == int(model.norm2.num_batches_tracked) == run.steps
    assert 0.0 < float(model.norm1.running_var.min()) and float(model.norm1.running_mean.abs().min()) > 0.0
    if paths:
        run.save(paths[0])
    print("hash", run.report.state_hash)


if __name__ == "__main__":
    main()
