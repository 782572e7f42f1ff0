#!/usr/bin/env bash
# Checkpoints are read by a few lines of Python with safetensors and json: examples/read_checkpoint.py gives the tensors
# of the exported model, to the bit, and the digests of the manifest are those of the files.
# Needs python3 with venv and PyPI, or PYTHON: a Python with safetensors, numpy and blake3.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/checkpoint/common.sh
python=$(python_with safetensors numpy blake3)
"$(example gpt_checkpoint)" "$out" > /dev/null
"$python" examples/read_checkpoint.py "$out/checkpoints/step-000500" >"$out/tensors"
grep -q 'wte.weight .*(256, 32)' "$out/tensors" ||
    fail "the example does not print the tensors"
"$python" - "$out" <<'PYTHON'
import json
import struct
import sys

sys.path.insert(0, "examples")
import blake3
import numpy
from read_checkpoint import load
from safetensors import safe_open
from safetensors.numpy import load_file

out = sys.argv[1]
folder = f"{out}/checkpoints/step-000500"
weights, exported = load(folder), load_file(f"{out}/f32/model.safetensors")
assert weights.keys() == exported.keys()
assert all(numpy.array_equal(weights[name], exported[name]) for name in weights), "other bits"
assert not numpy.array_equal(load(folder, "m")["wte.weight"], weights["wte.weight"])

# The state hash, from the parts alone: a digest of the step and of the shards' digests.
manifest = json.load(open(f"{folder}/manifest.json"))
files = [safe_open(f"{folder}/{file['name']}", "np") for file in manifest["files"]]
step = struct.pack("<Q", manifest["step"])
state = blake3.blake3(step)
for index, shard in enumerate(manifest["shards"]):
    leaf = blake3.blake3(step)
    for slot in manifest["slots"]:
        leaf.update(files[shard["file"]].get_tensor(f"{index:06}.{slot}").tobytes())
    assert leaf.hexdigest() == shard["blake3"], index
    state.update(leaf.digest())
assert state.hexdigest() == manifest["state_hash"] == json.load(open(f"{out}/expected.json"))["state_hash"]

# The seal: all bytes before its key.
text = open(f"{folder}/manifest.json", "rb").read()
body, seal = text.rsplit(b',"seal":"', 1)
assert blake3.blake3(body).hexdigest().encode() + b'"}\n' == seal
print("python: all right:", len(weights), "tensors, state hash", manifest["state_hash"])
PYTHON
