#!/usr/bin/env bash
# Builds what on_gpu.py runs, into target/on-gpu, for a machine that has a GPU but no Rust.
set -euo pipefail
cd "$(dirname "$0")/../.."

folder=target/on-gpu
mkdir -p "$folder"
cargo build --release
test=$(cargo test --release -p everstep-kernels --test gpu --no-run --message-format=json \
    | python3 -c 'import json, sys
built = [json.loads(line) for line in sys.stdin if line.startswith("{")]
print([it["executable"] for it in built if it.get("executable")][-1])')
strip --strip-debug -o "$folder/everstep" target/release/everstep
strip --strip-debug -o "$folder/gpu-operations" "$test"
du -h "$folder"/*
