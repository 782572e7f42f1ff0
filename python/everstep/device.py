"""Where a model computes: on the CPU, or on one NVIDIA GPU.

This module has all that PyTorch does on a GPU and not on the CPU. :mod:`everstep.mirror` knows when
it is done.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch.utils import deterministic

#: The kinds of devices on which Everstep trains a model of PyTorch.
KINDS = ("cpu", "cuda")
#: The workspaces with which cuBLAS repeats its results, also on several streams.
WORKSPACES = ":4096:8"


def of(parameters: Iterable[tuple[str, torch.Tensor]]) -> torch.device:
    """The device of trained parameters, which have one."""
    first: tuple[str, torch.device] | None = None
    for name, parameter in parameters:
        device = parameter.device
        if device.type not in KINDS:
            raise ValueError(
                f"{name} is on {device}: Everstep trains on the CPU, or on one NVIDIA GPU. Move the "
                'model there before everstep.Run, as in model.to("cuda")'
            )
        first = first or (name, device)
        if device != first[1]:
            raise ValueError(
                f"{first[0]} is on {first[1]}, and {name} on {device}: all trained parameters must "
                "be on one device. Move the whole model there before everstep.Run, as in "
                f'model.to("{device}")'
            )
    if first is None:
        raise ValueError("the model has no parameter that is trained")
    return first[1]


def repeat(device: torch.device) -> None:
    """Has PyTorch compute the same bits each time. An operation that cannot raises PyTorch's own
    error, which says so."""
    if device.type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", WORKSPACES)
    torch.use_deterministic_algorithms(True)
    # No result depends on memory that was not written.
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # It would choose algorithms by the time that they take.
    torch.backends.cudnn.benchmark = False


def seed(device: torch.device, number: int) -> None:
    """Seeds the generator of a GPU. The CPU's has a seed of its own."""
    if device.type == "cuda":
        torch.cuda.default_generators[device.index].manual_seed(number)


def name_of_gpu(device: torch.device) -> str:
    """The kind of GPU, and what else decides the bits of a result there, the rarest cause last: a
    cluster keeps 64 letters."""
    found = torch.cuda.get_device_properties(device)
    return f"{found.name} {found.major}.{found.minor}, {_tf32()}, torch {torch.__version__}"


def description(device: torch.device) -> dict[str, Any] | None:
    """What a cluster shows of a GPU. None on the CPU."""
    if device.type == "cpu":
        return None
    found = torch.cuda.get_device_properties(device)
    return {
        "index": device.index,
        "capability": [found.major, found.minor],
        "uuid": str(getattr(found, "uuid", "")),
        "memory_bytes": found.total_memory,
        "multiprocessors": found.multi_processor_count,
    }


def _tf32() -> str:
    """Which operations in f32 multiply in TF32."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    try:
        chosen = {"matmul": matmul.fp32_precision, "conv": cudnn.conv.fp32_precision}  # type: ignore[attr-defined]
        found = [name for name, precision in chosen.items() if precision == "tf32"]
    except AttributeError:  # before PyTorch 2.9
        allowed = {"matmul": matmul.allow_tf32, "conv": cudnn.allow_tf32}
        found = [name for name, is_allowed in allowed.items() if is_allowed]
    return f"TF32 {'+'.join(found)}" if found else "no TF32"


def peak_bytes(device: torch.device) -> int | None:
    """The most memory of the GPU that tensors of this process have had. None on the CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def moved(batch: Any, device: torch.device) -> Any:
    """A batch of the host, with its tensors on the device. What has no tensors stays as it is."""
    if device.type == "cpu":
        return batch
    if isinstance(batch, torch.Tensor):
        # Pinned memory is copied while the script goes on, and other memory before.
        return batch.to(device, non_blocking=True)
    if callable(getattr(batch, "to", None)):
        return batch.to(device)
    if isinstance(batch, Mapping):
        parts = {name: moved(part, device) for name, part in batch.items()}
        try:
            return type(batch)(parts)  # type: ignore[call-arg]
        except TypeError:
            return parts
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(part, device) for part in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)([moved(part, device) for part in batch])
    return batch


class Event(Protocol):
    """A point in the work of a device."""

    def query(self) -> bool:
        """Whether the device has come there."""

    def synchronize(self) -> None:
        """Waits until the device has come there."""


class Transfers(Protocol):
    """Copies between a device and memory of the host, which go on while the host does."""

    device: torch.device

    def host_memory(self, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Memory of the host for so many elements, which the device reads and writes by itself."""

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> Event:
        """Copies after what the device has been asked for, and before what it will be asked for.
        Returns the end of the copy."""

    def follow(self) -> None:
        """Later calls of :meth:`fetch` wait for all work enqueued so far."""

    def fetch(self, parts: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> Event:
        """Copies each second tensor to the first, in the host's memory, beside what the device is
        asked for. The tensors must live until the copy's end, which is returned."""


class CudaTransfers:
    """:class:`Transfers` of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        #: Gradients leave on a stream of their own, while the backward pass goes on.
        self._stream = torch.cuda.Stream(device)

    def host_memory(self, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        # A script may have set another default device.
        return torch.empty(count, dtype=dtype, device="cpu", pin_memory=True)

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> torch.cuda.Event:
        to.copy_(source, non_blocking=True)
        return torch.cuda.current_stream(self.device).record_event(_event())

    def follow(self) -> None:
        # In a hook the current stream is the one on which PyTorch has added up the gradient.
        self._stream.wait_stream(torch.cuda.current_stream(self.device))

    def fetch(self, parts: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> torch.cuda.Event:
        with torch.cuda.stream(self._stream):
            for to, source in parts:
                to.copy_(source, non_blocking=True)
        return self._stream.record_event(_event())


def _event() -> torch.cuda.Event:
    """An event for which a thread waits asleep: the engine's threads need the cores."""
    return torch.cuda.Event(blocking=True)
