"""Starts the ranks of a peer: processes that find each other over loopback, one thread each."""
import argparse
import os
import socket
from typing import Callable, Dict

import torch.multiprocessing as mp


def start(rank: Callable, about: str, defaults: Dict[str, int], kind: str) -> None:
    """Runs `rank(number, shared, flags)` in `--workers` processes.

    `defaults` are the flags, all of them numbers; `shared` is an array with a place for each rank,
    of the type that `array` calls `kind`.
    """
    flags = argparse.ArgumentParser(description=about)
    for name, default in {"workers": 2, **defaults}.items():
        flags.add_argument(f"--{name}", type=int, default=default)
    flags = flags.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo",
        OMP_NUM_THREADS="1")
    shared = mp.get_context("spawn").Array(kind, flags.workers)
    mp.spawn(rank, (shared, flags), nprocs=flags.workers)
