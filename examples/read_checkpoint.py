"""Reads a checkpoint into named numpy tensors: read_checkpoint.py CHECKPOINTS/step-000500 [SLOT]

SLOT is "master" (the f32 weights, the default) or a moment of the optimizer, "m" or "v".
Needs: pip install safetensors numpy
"""

import json
import sys

import numpy
from safetensors import safe_open


def load(folder, slot="master"):
    manifest = json.load(open(f"{folder}/manifest.json"))
    files = [safe_open(f"{folder}/{file['name']}", "np") for file in manifest["files"]]
    shards = enumerate(manifest["shards"])
    parts = [files[shard["file"]].get_tensor(f"{index:06}.{slot}") for index, shard in shards]
    flat, tensors = numpy.concatenate(parts), {}
    for tensor in manifest["tensors"]:
        start, count = tensor["offset"], int(numpy.prod(tensor["shape"]))
        tensors[tensor["name"]] = flat[start : start + count].reshape(tensor["shape"])
    return tensors


if __name__ == "__main__":
    for name, tensor in load(*sys.argv[1:]).items():
        print(f"{name:28} {str(tensor.shape):14} mean {tensor.mean():+.6f}")
