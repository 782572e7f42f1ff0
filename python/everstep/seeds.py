"""Random numbers by place: the same for a micro-batch or a sample on whichever worker."""

from __future__ import annotations

import hashlib
import random
import struct
import sys
from typing import Any

#: What the numbers are for. Two purposes never share a stream.
MICRO_BATCH, SAMPLE, HELD_OUT, EVALUATION = 1, 2, 3, 4


def key(purpose: int, *places: int) -> int:
    """A number of 63 bits that follows from a purpose and places, each of them below 2**64."""
    text = struct.pack(f"<{1 + len(places)}Q", purpose, *places)
    digest = hashlib.blake2b(text, digest_size=8, person=b"everstep").digest()
    return int.from_bytes(digest, "little") >> 1


def seed_generators(number: int, device: Any = None) -> None:
    """Seeds the generators of ``random``, of NumPy and of PyTorch on the CPU if they are in use, and
    that of a GPU on which a model of PyTorch computes."""
    random.seed(number)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(number)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(number & 0xFFFFFFFF)
    if device is not None:
        from everstep.device import seed

        seed(device, number)
