"""Runs another script as on a GPU, on the CPU: its model computes in memory of its own, and what goes
between that and the memory of the engine is copied late. usage: mirrored.py SCRIPT ARGUMENTS"""

import runpy
import sys
from pathlib import Path

import torch

from everstep import device, mirror

LATE = float("nan")


class Copy:
    """The end of copies that are made when somebody waits for them, or asks for the second time."""

    def __init__(self, parts) -> None:
        self._parts = [(to, source, source.clone()) for to, source in parts]
        self._is_asked = self._is_done = False

    def query(self) -> bool:
        if self._is_asked:
            self.synchronize()
        self._is_asked = True
        return self._is_done

    def synchronize(self) -> None:
        if self._is_done:
            return
        self._is_done = True
        for to, source, before in self._parts:
            assert torch.equal(source, before), "a tensor has changed before it was copied"
            to.copy_(before)


class LateTransfers:
    """The transfers of a device that is slow to copy."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self._followed = 0

    def host_memory(self, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.full((count,), LATE, dtype=dtype)

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> Copy:
        to.copy_(source)  # the model finds it, and the end of the copy comes later
        return Copy([(to, source)])

    def follow(self) -> None:
        self._followed += 1

    def fetch(self, parts) -> Copy:
        self._followed -= len(parts)
        assert self._followed >= 0, "a gradient would be copied before it is computed"
        for to, _ in parts:
            to.fill_(LATE)
        return Copy(parts)


#: What PyTorch would say of a GPU.
GPU = {
    "index": 0, "capability": [9, 0], "uuid": "8c7e2a01-0000-4000-8000-0123456789ab",
    "memory_bytes": 1 << 30, "multiprocessors": 132,
}

device.description = lambda _: GPU
mirror.BUCKET_BYTES = 4096
mirror.of = lambda device, count: mirror.MirroredMemory(count, LateTransfers())
sys.argv = [str(Path(__file__).parent / sys.argv[1]), *sys.argv[2:]]
runpy.run_path(sys.argv[0], run_name="__main__")
