"""Trains a module of Lightning: a classifier of made-up images, whose `fit` is Everstep's.

    everstep launch --workers 2 --respawn lightning_module.py --epochs 20
"""

import argparse

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import everstep.lightning

SIZE, CLASSES = 16, 4


class Blobs:
    """Images with a bright blob. Its quarter is the class, and the noise follows from the epoch."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        kind = index % CLASSES
        picture = torch.rand(1, SIZE, SIZE)
        top, left = (SIZE // 2 * place + index // CLASSES % 4 for place in divmod(kind, 2))
        picture[0, top : top + 4, left : left + 4] += 0.5
        return picture, kind


class Data(lightning.LightningDataModule):
    def __init__(self, samples: int) -> None:
        super().__init__()
        self.samples = samples

    def train_dataloader(self) -> DataLoader:
        return DataLoader(Blobs(self.samples), batch_size=8, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(Blobs(64), batch_size=8)


class Classifier(lightning.LightningModule):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU(), nn.Flatten(),
            nn.Linear(width * SIZE * SIZE // 16, CLASSES),
        )  # fmt: skip

    def training_step(self, batch, batch_idx: int) -> torch.Tensor:
        images, kinds = batch
        loss = F.cross_entropy(self.net(images), kinds)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx: int) -> None:
        images, kinds = batch
        logits = self.net(images)
        self.log("val_loss", F.cross_entropy(logits, kinds))
        self.log("val_accuracy", (logits.argmax(1) == kinds).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--width", type=int, default=16)
    flags = parser.parse_args()
    lightning.seed_everything(1)
    module = Classifier(flags.width)
    # In place of lightning.Trainer(max_epochs=…).fit(module, Data(…))
    run = everstep.lightning.fit(module, Data(flags.samples), epochs=flags.epochs, data_shards=4)
    print("accuracy", run.report.metric, "hash", run.report.state_hash)


if __name__ == "__main__":
    main()
