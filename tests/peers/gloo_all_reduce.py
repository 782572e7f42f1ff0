"""All-reduce over Gloo's plain TCP on loopback; prints one line of JSON.

CPU is that of all ranks within the calls that count; what a rank has to send at least is
2 (W - 1) / W of the vector, so W ranks send 2 (W - 1) vectors.
"""
import argparse
import json
import resource
import time

import torch
import torch.distributed as dist

import ranks


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def rank(rank: int, cpu, flags: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=flags.workers)
    x = torch.zeros(flags.mb * 1_000_000 // 4)
    seconds = []
    for turn in range(flags.warm_up + flags.iterations):
        dist.barrier()
        before, start = cpu_seconds(), time.perf_counter()
        dist.all_reduce(x)
        took = time.perf_counter() - start
        if turn >= flags.warm_up:
            seconds.append(took)
            cpu[rank] += cpu_seconds() - before
    dist.barrier()
    if rank == 0:
        sent = 2 * (flags.workers - 1) * flags.mb * 1_000_000 * flags.iterations
        print(json.dumps({"times_ms": [round(1e3 * took, 2) for took in seconds],
                          "cpu_seconds_per_gb": sum(cpu) / (sent / 1e9)}))
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks.start(rank, __doc__, {"mb": 16, "warm-up": 3, "iterations": 10}, kind="d")
