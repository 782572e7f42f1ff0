#!/usr/bin/env bash
# Builds what on_gpu.py and torch_on_gpu.py run, into target/on-gpu, for a machine that has a GPU but
# no Rust: x86-64 Linux with glibc 2.34 or later. The folder takes some 80 MB, a third of it if it is
# compressed. The programs find NVRTC and cuBLASLt of that machine.
set -euo pipefail
cd "$(dirname "$0")/../.."

folder=target/on-gpu
mkdir -p "$folder"
executable() {
    cargo "$@" --message-format=json | python3 -c 'import json, sys
built = [json.loads(line) for line in sys.stdin if line.startswith("{")]
print([it["executable"] for it in built if it.get("executable")][-1])'
}
program=$(executable build --release --bin everstep)
test=$(executable test --release -p everstep-kernels --test gpu --no-run)
stages=$(executable bench -p everstep-kernels --bench gpu --no-run)
strip --strip-debug -o "$folder/everstep" "$program"
strip --strip-debug -o "$folder/gpu-operations" "$test"
strip --strip-debug -o "$folder/gpu-stages" "$stages"
cargo build --release -p everstep-python
mkdir -p "$folder/package"
cp -r python/everstep "$folder/package"
strip --strip-debug -o "$folder/package/everstep/_everstep.abi3.so" \
    "$(dirname "$program")/lib_everstep.so"
du -h "$folder"/*
echo "carry $folder beside the sources, and run there:"
echo "  tests/cuda/on_gpu.py --binaries $folder"
echo "  tests/cuda/torch_on_gpu.py --package $folder/package"
