"""The memory in which the model and the engine meet: parameters go in, and gradients come out.

On the CPU both use the same memory. On a GPU the engine has a mirror of it in the memory of the
host, since the owners of parameters compute on the CPU.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch

from everstep import _everstep
from everstep.device import CudaTransfers, Event, Transfers

#: Gradients of so many bytes leave a GPU together: each copy costs the host some time, too.
BUCKET_BYTES = 16 << 20


class Memory(Protocol):
    """The flat vector of parameters and statistics, and the gradients of the turn under way."""

    #: The vector, on the device of the model.
    flat: torch.Tensor
    #: The vector, as the engine reads and writes it.
    host: torch.Tensor

    def begin(self) -> None:
        """``flat`` has its first values."""

    def settle(self) -> None:
        """The engine may write ``host`` from now on, until the next :meth:`update`."""

    def update(self, writes: int) -> None:
        """The engine has written ``host`` so many times since the process began, and writes no more
        before the next :meth:`settle`. Copies ``host`` to ``flat`` if it was written since."""

    def publish(self, engine: _everstep.Engine, offset: int, gradient: torch.Tensor) -> None:
        """Hands over a final gradient. Its first element is the one at ``offset`` of the vector."""

    def finish(self, engine: _everstep.Engine) -> None:
        """The engine gets what it has not got yet."""

    def release(self) -> None:
        """The engine has read all gradients."""

    def number(self, value: Any) -> Callable[[], float]:
        """Reads a number or a tensor of one element, as it is now. Does not wait for what is
        computed after."""


class SharedMemory:
    """The model computes in the memory that the engine reads and writes."""

    def __init__(self, count: int) -> None:
        self.flat = self.host = torch.empty(count, dtype=torch.float32, device="cpu")
        #: What the engine may still read.
        self._kept: list[torch.Tensor] = []

    def begin(self) -> None:
        pass

    def settle(self) -> None:
        pass

    def update(self, writes: int) -> None:
        pass

    def publish(self, engine: _everstep.Engine, offset: int, gradient: torch.Tensor) -> None:
        self._kept.append(gradient)
        engine.publish(offset, gradient.data_ptr(), gradient.numel())

    def finish(self, engine: _everstep.Engine) -> None:
        pass

    def release(self) -> None:
        self._kept.clear()

    def number(self, value: Any) -> Callable[[], float]:
        return lambda: float(value.detach() if isinstance(value, torch.Tensor) else value)


class MirroredMemory:
    """The model computes on a device, and the engine reads and writes a mirror in the host's memory.

    The engine writes only while the script's thread waits for it, between :meth:`settle` and
    :meth:`update`. So no copy to the device is under way then.
    """

    def __init__(self, count: int, transfers: Transfers) -> None:
        self._transfers = transfers
        self.flat = torch.empty(count, dtype=torch.float32, device=transfers.device)
        self.host = transfers.host_memory(count)
        #: How many writes of the engine the device has.
        self._writes = 0
        self._updated: Event | None = None
        self._gradients = transfers.host_memory(count)
        #: Gradients that wait for others, each with its place in the host's memory.
        self._bucket: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._bucket_bytes = 0
        #: Gradients on their way, in order. A reference to each keeps PyTorch from using its memory
        #: again before it is copied.
        self._leaving: deque[tuple[Event, list[tuple[torch.Tensor, torch.Tensor]]]] = deque()

    def begin(self) -> None:
        self.host.copy_(self.flat)

    def settle(self) -> None:
        if self._updated is not None:
            self._updated.synchronize()
            self._updated = None

    def update(self, writes: int) -> None:
        if writes != self._writes:
            self._updated = self._transfers.copy(self.flat, self.host)
            self._writes = writes

    def publish(self, engine: _everstep.Engine, offset: int, gradient: torch.Tensor) -> None:
        self._transfers.follow()
        place = self._gradients[offset : offset + gradient.numel()]
        self._bucket.append((place, gradient.view(-1)))
        self._bucket_bytes += gradient.nbytes
        if self._bucket_bytes >= BUCKET_BYTES:
            self._send_bucket()
        while self._leaving and self._leaving[0][0].query():
            self._hand_over(engine)

    def finish(self, engine: _everstep.Engine) -> None:
        self._send_bucket()
        while self._leaving:
            self._leaving[0][0].synchronize()
            self._hand_over(engine)

    def release(self) -> None:
        pass  # the next gradients come after the engine has read these

    def number(self, value: Any) -> Callable[[], float]:
        if not isinstance(value, torch.Tensor):
            return lambda: float(value)
        if value.device != self.flat.device:
            return lambda: float(value.detach())
        copied = self._transfers.host_memory(1, value.dtype)
        ended = self._transfers.copy(copied, value.detach().reshape(1))

        def read() -> float:
            ended.synchronize()
            return float(copied)

        return read

    def _send_bucket(self) -> None:
        if self._bucket:
            self._leaving.append((self._transfers.fetch(self._bucket), self._bucket))
            self._bucket, self._bucket_bytes = [], 0

    def _hand_over(self, engine: _everstep.Engine) -> None:
        """The engine gets the oldest gradients on their way, which have come."""
        for place, _ in self._leaving.popleft()[1]:
            engine.publish(int(place.storage_offset()), place.data_ptr(), place.numel())


def of(device: torch.device, count: int) -> Memory:
    """Memory for so many elements of a model on this device."""
    return SharedMemory(count) if device.type == "cpu" else MirroredMemory(count, CudaTransfers(device))
