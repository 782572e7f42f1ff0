"""Training beside a plain loop of PyTorch."""

from __future__ import annotations

import json
import struct

import pytest
from conftest import needs_torch

pytestmark = needs_torch


def read(path):
    """The tensors of a safetensors file."""
    import torch

    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    head = json.loads(data[8 : 8 + length])
    head.pop("__metadata__", None)
    found = {}
    for name, it in head.items():
        begin, end = it["data_offsets"]
        values = torch.frombuffer(bytearray(data[8 + length + begin : 8 + length + end]), dtype=torch.float32)
        found[name] = values.view(it["shape"])
    return found


@pytest.mark.parametrize("kind", ["adamw", "sgd", "nesterov"])
def test_weights_are_those_of_a_plain_loop_to_the_bit(train, tmp_path, kind):
    import torch

    path, plain = tmp_path / "model.safetensors", tmp_path / "plain.pt"
    ended = train("parity.py", kind, str(path), str(plain), flags=("--workers", "2"))
    assert ended.code == 0, ended.err + ended.logs()
    ours, theirs = read(path), torch.load(plain)
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), f"{name}: {ours[name]} {theirs[name]}"
