"""A script that does what its argument says, in its third step or before."""

import ctypes
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

import everstep

fault = sys.argv[1]


class Numbers:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if fault == "sample" and index == 63:
            raise KeyError("sample 63 is damaged")
        if fault == "data":
            return torch.tensor([os.getpid() + index / 64.0])
        return torch.tensor([index / 64.0])


def hang(marker: Path) -> None:
    """Holds Python's lock for ever, in the first process that comes here."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return
    ctypes.PyDLL(None).pause()


if fault != "unseeded":
    torch.manual_seed(1)
model = nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 1))
if fault == "statistics":
    model.insert(1, nn.BatchNorm1d(4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if fault == "muon":
    optimizer = torch.optim.RMSprop(model.parameters())
run = everstep.Run(model, optimizer, data=Numbers(), steps=int(sys.argv[2]) if len(sys.argv) > 2 else 2000, data_shards=2, micro_batch=4)
for x in run:
    loss = (model(x) - 3 * x).square().mean()
    if fault in ("slow", "hang"):
        time.sleep(0.01)
    if fault == "hang" and run.step >= 100:
        hang(Path(sys.argv[3]))
    if fault in ("gate", "shared") and run.step >= 20:
        # Goes on when the test has made the file.
        while not Path(sys.argv[3]).exists():
            time.sleep(0.01)
    if run.step >= 3:
        if fault == "exception":
            raise ValueError("the loss looks odd")
        if fault == "break":
            break
        if fault == "exit":
            sys.exit(0)
        if fault == "backward":
            loss.backward()
        if fault == "forgotten":
            continue
    run.backward(loss)
print("after the loop")
if fault == "shared":
    print("hash", run.report.state_hash)
    run.save(Path(sys.argv[4]) / f"{os.getpid()}.safetensors")
if fault == "late":
    raise RuntimeError("too late")
