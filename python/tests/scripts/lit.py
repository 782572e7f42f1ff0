"""Trains a module of Lightning by `everstep.lightning.fit`, and by a loop that does the same. Other
arguments are faults."""

import sys

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy

import everstep
import everstep.lightning

mode = sys.argv[1]
SAMPLES, SHARDS, ROWS, EPOCHS, CLASSES = 64, 2, 4, 2, 3
#: An epoch has eight steps.
STEPS = EPOCHS * SAMPLES // (SHARDS * ROWS)


class Numbers:
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        kind = index % CLASSES
        return torch.rand(4) + 0.5 * F.one_hot(torch.tensor(kind), 4), kind


class Data(lightning.LightningDataModule):
    """Its batches are twice its samples."""

    def setup(self, stage: str) -> None:
        assert stage == "fit" and self.trainer.datamodule is self
        self.training, self.held_out = Numbers(SAMPLES), Numbers(21)

    def train_dataloader(self):
        return DataLoader(self.training, ROWS, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.held_out, ROWS)

    def on_after_batch_transfer(self, batch, dataloader_idx: int):
        return 2 * batch[0], batch[1]


class Net(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.GELU(), nn.Linear(16, CLASSES)
        )
        self.accuracy = MulticlassAccuracy(CLASSES, average="micro")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch, batch_idx: int):
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        epoch = batch_idx * SHARDS * ROWS // SAMPLES
        assert (self.global_step, self.current_epoch) == (batch_idx, epoch)
        if mode == "metric":
            self.accuracy.update(logits, y)
        else:
            self.accuracy(logits, y)
        self.log("accuracy", self.accuracy, on_step=True)
        self.log("train_loss", loss, prog_bar=True)
        return None if mode == "nothing" else {"loss": loss}

    def validation_step(self, batch):
        logits = self(batch[0])
        hits = (logits.argmax(1) == batch[1]).float().mean()
        self.log_dict({"val_accuracy": hits, "val_loss": F.cross_entropy(logits, batch[1])})

    def configure_optimizers(self):
        assert self.trainer.estimated_stepping_batches == STEPS
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]

    def on_train_epoch_end(self) -> None:
        raise AssertionError("fit does not call it")


def loop(net: Net) -> everstep.Run:
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, STEPS // EPOCHS, gamma=0.5)
    run = everstep.Run(
        net, optimizer, schedule, data=Numbers(SAMPLES), validation=Numbers(21), steps=STEPS,
        data_shards=SHARDS, micro_batch=ROWS,
    )

    @run.evaluate(every=4)
    def evaluate(batch):
        x, y = batch
        logits = net(2 * x)
        accuracy = (logits.argmax(1) == y).float().mean()
        return {"loss": F.cross_entropy(logits, y), "accuracy": accuracy}

    for x, y in run:
        logits = net(2 * x)
        loss = F.cross_entropy(logits, y)
        run.log(accuracy=(logits.argmax(1) == y).float().mean(), train_loss=loss)
        run.backward(loss)
    return run


lightning.seed_everything(1, verbose=False)
net = Net()
if mode == "loop":
    run = loop(net)
else:
    run = everstep.lightning.fit(
        net, Data(), epochs=EPOCHS, data_shards=SHARDS, evaluate_every=4, name="lit"
    )
    assert "log" not in vars(net) and len(net.state_dict()) == 9
print("hash", run.report.state_hash)
