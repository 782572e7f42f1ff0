"""Steps of a small GPT under PyTorch DDP over Gloo, one thread a rank; prints one line of JSON.

Each step is `accumulate` micro-batches a rank, clipped to a norm of 1 and applied by fused AdamW.
Batches are random bytes that are there before the clock starts.
"""
import argparse
import json
import resource
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist

import gptm
import ranks


def rank(rank: int, peaks, flags: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=flags.workers)
    torch.manual_seed(0)
    model = gptm.GPT(L=flags.layers, d=flags.width, h=flags.heads, T=flags.context)
    alone = flags.workers == 1
    net = model if alone else torch.nn.parallel.DistributedDataParallel(
        model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    shape = (flags.micro_batch, flags.context)
    x, y = torch.randint(0, 256, shape), torch.randint(0, 256, shape)
    seconds = []
    for _ in range(flags.warm_up + flags.steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        for micro_batch in range(flags.accumulate):
            last = micro_batch + 1 == flags.accumulate
            with nullcontext() if alone or last else net.no_sync():
                (net(x, y) / flags.accumulate).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    peaks[rank] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    dist.barrier()
    if rank == 0:
        tokens = flags.workers * flags.accumulate * flags.micro_batch * flags.context
        counted = [round(1e3 * took, 2) for took in seconds[flags.warm_up:]]
        print(json.dumps({"step_tokens": tokens, "step_ms": counted,
                          "peak_rss_bytes": list(peaks)}))
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks.start(rank, __doc__, {
        "layers": 6, "width": 384, "heads": 6, "context": 256, "micro-batch": 4, "accumulate": 1,
        "warm-up": 3, "steps": 9}, kind="q")
