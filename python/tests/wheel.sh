#!/usr/bin/env bash
# Builds the wheel that users install, and shows how large it is. Installs it into a fresh environment, where nothing of
# PyTorch is, and shows how long `everstep --help` takes: the median of ten times.
# Needs Rust and python3 with venv; downloads maturin. The build takes minutes.
# usage: wheel.sh
set -euo pipefail
cd "$(dirname "$0")/../.."

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
"${PYTHON:-python3}" -m venv "$out/builder"
"$out/builder/bin/pip" install --quiet 'maturin>=1.7,<2'
"$out/builder/bin/maturin" build --manifest-path python/Cargo.toml --interpreter "$out/builder/bin/python" \
    --out "$out/wheels"
wheel=$(echo "$out"/wheels/everstep-*.whl)
bytes=$(stat -c %s "$wheel")
echo "$(basename "$wheel"): $((bytes / 10000 / 100)).$(printf %02d $((bytes / 10000 % 100))) MB"
"${PYTHON:-python3}" -m venv "$out/fresh"
"$out/fresh/bin/pip" install --quiet --no-index "$wheel"
"$out/fresh/bin/python" - "$out/fresh/bin/everstep" <<'PYTHON'
import statistics, subprocess, sys, time

def seconds() -> float:
    began = time.monotonic()
    subprocess.run([sys.argv[1], "--help"], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began

print(f"everstep --help: {statistics.median(seconds() for _ in range(10)):.2f} s")
PYTHON
[ "$bytes" -lt 12000000 ] || { echo "error: the wheel is larger than 12 MB" >&2; exit 1; }
