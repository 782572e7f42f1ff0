#!/usr/bin/env python3
"""Trains a GPT, or a network with running statistics and dropout, on a GPU: under `everstep launch`, or
with --plain in a loop of PyTorch. Its last line is JSON: what `torch_on_gpu.py` compares."""
import argparse
import json
import pathlib
import statistics
import sys
import time

import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))
import gptm  # noqa: E402

WARM_UP = 5


class Sequences:
    """So many sequences, each of which has a pattern of its own."""

    def __init__(self, count: int, context: int):
        self.count, self.context = count, context

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        text = (index * 7 + torch.arange(self.context + 1) * (1 + index % 5)) % 251
        return text[:-1], text[1:]


class Images:
    """Noise with a pattern. Each time an image is read it has other noise."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int):
        image = 0.1 * torch.rand(1, 16, 16)
        image[:, index % 4 * 4:index % 4 * 4 + 4] += 1.0
        return image, index % 4


class Net(torch.nn.Sequential):
    """A model of images, with the call of a GPT: the mean loss."""

    def __init__(self):
        nn = torch.nn
        super().__init__(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.2),
                         nn.Flatten(), nn.Linear(16 * 14 * 14, 4))

    def forward(self, x, y):
        return F.cross_entropy(super().forward(x), y)


def made(flags):
    """The model on the GPU, and its data."""
    torch.manual_seed(1)
    if flags.images:
        return Net().cuda(), Images()
    model = gptm.GPT(T=flags.context, L=flags.layers, d=flags.width, h=flags.heads)
    count = flags.data_shards * flags.micro_batch  # so the batch of each step has all of them
    return model.cuda(), Sequences(count, flags.context)


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)


def plain(flags, is_deterministic: bool) -> dict:
    """The same steps in PyTorch alone: each micro-batch, then the optimizer."""
    torch.use_deterministic_algorithms(is_deterministic)
    model, data = made(flags)
    optimizer = optimizer_of(model)
    batches = torch.utils.data.DataLoader(data, batch_size=flags.micro_batch)
    losses, seconds = [], []
    for _ in range(flags.steps):
        begin, loss_of_step = time.perf_counter(), 0.0
        for x, y in batches:
            x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
            with torch.autocast("cuda", torch.bfloat16, enabled=flags.bf16):
                loss = model(x, y) / flags.data_shards
            loss.backward()
            loss_of_step = loss_of_step + loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss_of_step))
        seconds.append(time.perf_counter() - begin)
    return {"losses": losses, "seconds": statistics.median(seconds[WARM_UP:])}


def everstep_run(flags) -> dict:
    import everstep
    model, data = made(flags)
    run = everstep.Run(
        model, optimizer_of(model), data=data, steps=flags.steps, data_shards=flags.data_shards,
        micro_batch=flags.micro_batch, clip_norm=1.0, loaders=flags.loaders,
        validation=Images() if flags.images else None)
    if flags.images:
        run.evaluate(lambda batch: model(*batch), every=10)
    stages: dict[str, list[float]] = {"waits": [], "forward": [], "backward": []}
    ended = time.perf_counter()
    for x, y in run:
        begun = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16, enabled=flags.bf16):
            loss = model(x, y)
        run.log(largest=loss)
        forward = time.perf_counter()
        run.backward(loss)
        for name, took in zip(stages, (begun - ended, forward - begun, time.perf_counter() - forward)):
            stages[name].append(took)
        ended = time.perf_counter()
        while flags.gate and run.step >= 20 and not pathlib.Path(flags.gate).exists():
            time.sleep(0.01)
            ended = time.perf_counter()
    turns = {name: 1e3 * statistics.median(took[WARM_UP:]) for name, took in stages.items()
             if len(took) > WARM_UP}
    status = pathlib.Path("/proc/self/status").read_text()
    host = next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]
    return {"device": str(run.device), "turn_ms": turns, "host_mb": int(host) // 1000,
            "gpu_mb": torch.cuda.max_memory_allocated() // 1_000_000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in [("layers", 4), ("heads", 4), ("width", 128), ("context", 128),
                          ("steps", 20), ("data-shards", 4), ("micro-batch", 4), ("loaders", 0)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--images", action="store_true", help="train the network of images")
    parser.add_argument("--gate", help="from step 20 on, wait for this file")
    parser.add_argument("--plain", choices=["deterministic", "usual"])
    flags = parser.parse_args()
    found = plain(flags, flags.plain == "deterministic") if flags.plain else everstep_run(flags)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
