"""Training beside a plain loop of PyTorch."""

from __future__ import annotations

import json
import struct

import pytest
from conftest import needs_torch

pytestmark = needs_torch


def read(path):
    """The tensors of a safetensors file of f32 and i64."""
    import torch

    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    head = json.loads(data[8 : 8 + length])
    head.pop("__metadata__", None)
    kinds = {"F32": torch.float32, "I64": torch.int64}
    found = {}
    for name, it in head.items():
        begin, end = it["data_offsets"]
        part = bytearray(data[8 + length + begin : 8 + length + end])
        found[name] = torch.frombuffer(part, dtype=kinds[it["dtype"]]).view(it["shape"])
    return found


def trained(train, folder, kind):
    """The tensors after a run, and after a plain loop."""
    import torch

    path, plain = folder / "model.safetensors", folder / "plain.pt"
    ended = train("parity.py", kind, str(path), str(plain), flags=("--workers", "2"))
    assert ended.code == 0, ended.err + ended.logs()
    ours, theirs = read(path), torch.load(plain)
    assert ours.keys() == theirs.keys()
    return ours, theirs


@pytest.mark.parametrize(
    "kind", ["adamw", "adam", "amsgrad", "sgd", "dampened", "nesterov", "onecycle"]
)
def test_weights_are_those_of_a_plain_loop_to_the_bit(train, tmp_path, kind):
    import torch

    ours, theirs = trained(train, tmp_path, kind)
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), f"{name}: {ours[name]} {theirs[name]}"


@pytest.mark.parametrize(
    "kind", ["nadam", "radam", "adamax", "rmsprop", "adagrad", "adadelta", "rprop", "asgd", "lion"]
)
def test_weights_are_close_to_those_of_a_plain_loop(train, tmp_path, kind):
    import torch

    ours, theirs = trained(train, tmp_path, kind)
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-6)


def test_clipped_gradients_of_more_data_shards_make_nearly_the_weights_of_a_plain_loop(
    train, tmp_path
):
    ours, theirs = trained(train, tmp_path, "clipped")
    for name in ours:
        difference = (ours[name] - theirs[name]).norm() / theirs[name].norm()
        assert difference < 1e-5, f"{name}: {difference}"


def test_statistics_are_the_means_of_all_data_shards(train, tmp_path):
    import torch

    ours, theirs = trained(train, tmp_path, "batchnorm")
    assert int(ours["1.num_batches_tracked"]) == 50
    for name in ours:
        # No gradient depends on the statistics.
        exact = name in ("0.weight", "0.bias", "3.weight", "3.bias", "1.num_batches_tracked")
        rtol, atol = (0.0, 0.0) if exact else (1e-5, 1e-7)
        torch.testing.assert_close(ours[name], theirs[name], rtol=rtol, atol=atol)
