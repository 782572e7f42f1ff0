#!/usr/bin/env bash
# Installs NVRTC, the compiler of CUDA kernels, from its package on PyPI: 90 MB, no GPU and no root
# needed. Prints the folder to put on LD_LIBRARY_PATH.
#
#   LD_LIBRARY_PATH=$(tests/cuda/install-nvrtc.sh) cargo test -p everstep-kernels --test nvrtc -- --nocapture
set -euo pipefail
cd "$(dirname "$0")/../.."

# The oldest that Everstep works with.
package=nvidia-cuda-nvrtc==13.0.88
folder=$PWD/target/nvrtc/${package//==/-}
library=libnvrtc.so.13

if [ ! -d "$folder" ]; then
    if ! python3 -m pip --version >/dev/null 2>&1; then
        echo "error: no pip, which $package is installed with (apt-get install python3-pip)" >&2
        exit 2
    fi
    partial=$(mktemp -d)
    trap 'rm -rf "$partial"' EXIT
    python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$partial" "$package" >&2
    python3 -m zipfile -e "$partial"/*.whl "$partial/unpacked"
    mkdir -p "$(dirname "$folder")"
    mv "$partial/unpacked" "$folder" 2>/dev/null || [ -d "$folder" ] # somebody else was faster
fi
found=$(find "$folder" -name "$library" -print -quit)
if [ -z "$found" ]; then
    echo "error: $library is not in $folder: remove the folder and try again" >&2
    exit 1
fi
dirname "$found"
