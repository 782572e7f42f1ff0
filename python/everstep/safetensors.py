"""Reads and writes tensors in the safetensors format, with the standard library alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch

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
    """The tensors of a file, all of which must be of 32 bits."""
    data = bytearray(Path(path).read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    found = {}
    for name, it in json.loads(data[8:begin]).items():
        if name == "__metadata__":
            continue
        if it["dtype"] != "F32":
            raise ValueError(f"{path}: {name} is {it['dtype']}")
        first, end = (begin + offset for offset in it["data_offsets"])
        count = (end - first) // 4
        flat = torch.empty(0, dtype=torch.float32)
        if count:
            flat = torch.frombuffer(data, dtype=torch.float32, count=count, offset=first)
        found[name] = flat.view(it["shape"])
    return found


def write(path: str | os.PathLike[str], tensors: dict[str, torch.Tensor]) -> None:
    """Writes a file whole or not at all. Several processes may write the same file at once."""
    target = Path(path)
    partial = target.with_name(f".{target.name}-{os.getpid()}.partial")
    head: dict[str, object] = {}
    end = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _TYPES:
            raise TypeError(f"{name} is of {tensor.dtype}, which safetensors does not have")
        begin, end = end, end + tensor.numel() * tensor.element_size()
        head[name] = {
            "dtype": _TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    try:
        with open(partial, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for tensor in tensors.values():
                flat = tensor.detach().cpu().contiguous().view(-1)
                if flat.numel():
                    file.write(flat.view(torch.uint8).numpy().data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
