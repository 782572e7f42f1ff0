"""A small residual network with batch norms, on random crops and flips of made-up images.

    everstep launch --workers 4 --respawn resnet.py --epochs 20
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

import everstep

SIZE, CLASSES = 24, 6


class Residual(nn.Module):
    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        skip = nn.Conv2d(channels, out, 1, stride, bias=False)
        self.skip = nn.Sequential(skip, nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm2(self.two(F.relu(self.norm1(self.one(x)))))
        return F.relu(y + self.skip(x))


def resnet(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        Residual(width, width, 1), Residual(width, 2 * width, 2), Residual(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, CLASSES),
    )  # fmt: skip


def image(index: int) -> tuple[torch.Tensor, int]:
    """A noisy image of a stripe. Its direction and colour are the class."""
    kind, noise = index % CLASSES, torch.Generator().manual_seed(index)
    picture = 0.3 * torch.rand(3, SIZE + 8, SIZE + 8, generator=noise)
    stripe = picture[kind % 3]
    (stripe if kind < 3 else stripe.T)[10:16] += 0.7
    return picture, kind


class Images:
    """Augmentation draws from the generators that Everstep seeds for each sample and epoch."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        picture, kind = image(index)
        top, left = (int(torch.randint(0, 9, ())) for _ in range(2))
        picture = picture[:, top : top + SIZE, left : left + SIZE]
        return (picture.flip(2) if torch.rand(()) < 0.5 else picture), kind


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--samples", type=int, default=960)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--loaders", type=int, default=0)
    flags = parser.parse_args()
    torch.manual_seed(1)
    model = resnet(flags.width)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    steps = flags.epochs * flags.samples // 32
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
    run = everstep.Run(
        model, optimizer, schedule, data=Images(flags.samples), steps=steps, data_shards=4,
        micro_batch=8, loaders=flags.loaders,
    )
    for pictures, kinds in run:
        run.backward(F.cross_entropy(model(pictures), kinds, label_smoothing=0.1))
    run.save("resnet.safetensors")

    model.eval()  # with the running statistics of all data shards
    pictures = torch.stack([image(index)[0] for index in range(10_000, 10_060)])[:, :, 4:-4, 4:-4]
    kinds = torch.tensor([index % CLASSES for index in range(10_000, 10_060)])
    with torch.no_grad():
        right = (model(pictures).argmax(1) == kinds).float().mean()
    print(f"hash {run.report.state_hash} accuracy {float(right):.2f}")


if __name__ == "__main__":
    main()
