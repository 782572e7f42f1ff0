"""Reads and writes files of the safetensors format, with the standard library alone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """A tensor of a file."""

    #: The name of its type in the format, such as ``F32``.
    dtype: str
    shape: list[int]
    #: How many bytes it has.
    size: int
    #: Its elements in row-major order. They are asked for when they are written.
    data: Callable[[], Any]


def read_f32(path: str | os.PathLike[str]) -> dict[str, tuple[list[int], memoryview]]:
    """The shapes and the bytes of a file's tensors, all of which must be f32."""
    data = bytearray(Path(path).read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    found = {}
    for name, it in json.loads(data[8:begin]).items():
        if name == "__metadata__":
            continue
        if it["dtype"] != "F32":
            raise ValueError(f"{path}: {name} is {it['dtype']}")
        first, end = (begin + offset for offset in it["data_offsets"])
        found[name] = it["shape"], memoryview(data)[first:end]
    return found


def write(path: str | os.PathLike[str], tensors: Mapping[str, Entry]) -> None:
    """Writes a file whole or not at all. Several processes may write the same file at once."""
    target = Path(path)
    partial = target.with_name(f".{target.name}-{os.getpid()}.partial")
    head: dict[str, object] = {}
    end = 0
    for name, it in tensors.items():
        begin, end = end, end + it.size
        head[name] = {"dtype": it.dtype, "shape": it.shape, "data_offsets": [begin, end]}
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    try:
        with open(partial, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for it in tensors.values():
                if it.size:
                    file.write(it.data())
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
