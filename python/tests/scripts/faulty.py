"""A script that does what its argument says, in its third step or before."""

import ctypes
import os
import secrets
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
        if fault == "stuck" and "run" in globals() and run.step >= 100 and is_first(Path(sys.argv[3])):
            time.sleep(1e6)
        noise = secrets.randbelow(1 << 20) / 64.0 if fault == "noise" else 0.0
        return torch.tensor([index / 64.0 + noise + (os.getpid() if fault == "data" else 0)])


class Counting(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x


class Chance(nn.Module):
    """Draws from a generator that nobody seeds, and has an operation that need not repeat."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            torch.zeros(4).put_(torch.tensor([1]), torch.ones(1))
        return x * (1.0 + secrets.randbelow(1 << 20) / 64.0)


def is_first(marker: Path) -> bool:
    """Whether no process has come here before."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


if fault != "unseeded":
    torch.manual_seed(1)
model = nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 1))
if fault == "buffer":
    model.insert(1, Counting())
if fault == "synchronous":
    model.insert(1, nn.SyncBatchNorm(4))
if fault == "chance":
    model.insert(1, Chance())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if fault == "adafactor":
    optimizer = torch.optim.Adafactor(model.parameters())
if fault == "several":
    optimizer = [optimizer]
run = everstep.Run(model, optimizer, data=Numbers(), steps=int(sys.argv[2]) if len(sys.argv) > 2 else 2000, data_shards=2, micro_batch=4)
if fault == "loaded":
    model.load_state_dict({name: 2.0 * it for name, it in model.state_dict().items()})
for x in run:
    loss = (model(x) - 3 * x).square().mean()
    if fault in ("slow", "hang", "memory"):
        time.sleep(0.01)
    if fault == "stuck":
        time.sleep(0.05)  # a run that goes on for longer than its data set may take
    if fault in ("hang", "memory") and run.step >= 100 and is_first(Path(sys.argv[3])):
        if fault == "memory":
            torch.empty(1 << 60)
        ctypes.PyDLL(None).pause()  # holds Python's lock for ever
    while fault == "held" and run.step > int(Path(sys.argv[3]).read_text() or 0):
        time.sleep(0.01)  # until the test lets it go on: the file has a step
    while fault == "shared" and run.step >= 20 and not Path(sys.argv[3]).exists():
        time.sleep(0.01)  # until the test has made the file
    if run.step >= 3:
        if fault == "exception":
            raise ValueError("the loss looks odd")
        if fault == "break":
            break
        if fault == "exit":
            sys.exit(0)
        if fault == "backward":
            loss.backward()
        if fault == "step":
            optimizer.step()
        if fault == "rate":
            optimizer.param_groups[0]["lr"] = 0.001
        if fault == "clamp":
            with torch.no_grad():
                model[0].weight.clamp_(-1.0, 1.0)
        if fault == "forgotten":
            continue
    if fault == "half":
        with torch.autocast("cpu", torch.float16):
            loss = model(x).float().square().mean()
    run.backward(loss)
    if fault == "still":
        # A callback of the script reads the model here.
        before = [parameter.detach().clone() for parameter in model.parameters()]
        time.sleep(0.02)
        same = all(map(torch.equal, before, model.parameters()))
        assert same, f"the weights have changed since run.backward in step {run.step}"
print("after the loop")
if fault == "shared":
    print("hash", run.report.state_hash)
    run.save(Path(sys.argv[4]) / f"{os.getpid()}.safetensors")
if fault == "late":
    raise RuntimeError("too late")
