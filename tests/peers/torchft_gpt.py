"""Steps of a small GPT under torchft over Gloo, one thread a replica; prints one line of JSON.

As ddp_gpt.py does them, with torchft's DistributedDataParallel and its optimizer. A step counts if
all replicas took part.
"""
import argparse
import json
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torchft
from torchft.coordination import LighthouseServer

import gptm
import ranks

ALL = "127.0.0.1"


def rank(rank: int, _shared, flags: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    common = dist.TCPStore(ALL, int(os.environ["MASTER_PORT"]), is_master=rank == 0,
                           wait_for_workers=False)
    if rank == 0:
        lighthouse = LighthouseServer(bind=f"{ALL}:0", min_replicas=flags.workers)
        common.set("lighthouse", lighthouse.address())
    store = dist.TCPStore(ALL, 0, is_master=True, wait_for_workers=False)
    torch.manual_seed(0)
    model = gptm.GPT(L=flags.layers, d=flags.width, h=flags.heads, T=flags.context)
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def load(state: dict) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=60)),
        min_replica_size=flags.workers, load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        replica_id=f"replica-{rank}", rank=0, world_size=1, hostname="localhost",
        store_addr=ALL, store_port=store.port, lighthouse_addr=common.get("lighthouse").decode())
    net = torchft.DistributedDataParallel(manager, model, gradient_as_bucket_view=True)
    optimizer = torchft.Optimizer(manager, inner)
    shape = (flags.micro_batch, flags.context)
    x, y = torch.randint(0, 256, shape), torch.randint(0, 256, shape)
    seconds = []
    while len(seconds) < flags.warm_up + flags.steps:
        start = time.perf_counter()
        optimizer.zero_grad()
        net(x, y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        before = manager.current_step()
        optimizer.step()
        if manager.current_step() > before and manager.num_participants() == flags.workers:
            seconds.append(time.perf_counter() - start)
    if rank == 0:
        tokens = flags.workers * flags.micro_batch * flags.context
        counted = [round(1e3 * took, 2) for took in seconds[flags.warm_up:]]
        print(json.dumps({"step_tokens": tokens, "step_ms": counted}), flush=True)
    # Its threads wait for each other at the end.
    os._exit(0)


if __name__ == "__main__":
    ranks.start(rank, __doc__, {
        "layers": 6, "width": 384, "heads": 6, "context": 256, "micro-batch": 4,
        "warm-up": 3, "steps": 9}, kind="q")
