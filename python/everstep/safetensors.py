"""Tensors of PyTorch in files of the safetensors format."""

from __future__ import annotations

import os
from typing import Any

import torch

from everstep import tensor_file

_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def read_f32(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """The tensors of a file, all of which must be f32."""
    found = {}
    for name, (shape, data) in tensor_file.read_f32(path).items():
        flat = torch.empty(0, dtype=torch.float32)
        if len(data):
            flat = torch.frombuffer(data, dtype=torch.float32)
        found[name] = flat.view(shape)
    return found


def write(path: str | os.PathLike[str], tensors: dict[str, torch.Tensor]) -> None:
    """Writes a file whole or not at all. Several processes may write the same file at once."""
    tensor_file.write(path, {name: _entry(name, it) for name, it in tensors.items()})


def _entry(name: str, tensor: torch.Tensor) -> tensor_file.Entry:
    if tensor.dtype not in _TYPES:
        raise TypeError(f"{name} is of {tensor.dtype}, which safetensors does not have")

    def data() -> Any:
        flat = tensor.detach().cpu().contiguous().view(-1)
        return flat.view(torch.uint8).numpy().data

    size = tensor.numel() * tensor.element_size()
    return tensor_file.Entry(_TYPES[tensor.dtype], list(tensor.shape), size, data)
