#!/usr/bin/env bash
# Builds the Python package, checks its types, and runs its tests with PyTorch and with JAX.
#
# VENV: the virtual environment [target/python-venv]. TORCH, JAX: their versions, or `none`. EXTENSION: the extension
# module, as `cargo test --workspace --no-run` leaves it; without it a wheel is built, which takes minutes.
# PyTorch comes from PyPI alone: its wheel of some 540 MB without CUDA's libraries, in place of which
# cuda_stubs.py makes small ones. JAX, Flax, Equinox and Optax take 0.8 GB. A second call reuses the environment. Where PyTorch cannot be had,
# the tests that need it are skipped, and this says so at the end.
# usage: run.sh [--environment | ARGUMENTS OF PYTEST], the first to make the environment and no more
set -euo pipefail
cd "$(dirname "$0")/../.."

python=${PYTHON:-python3}
torch=${TORCH:-2.15.0}
jax=${JAX:-0.10.2}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
venv=$(realpath -m "${VENV:-$target/python-venv}")
stubs=$venv/cuda-stubs-$torch

for tool in cargo "$python"; do
    if ! command -v "$tool" >/dev/null; then
        echo "error: no $tool: the Python package needs it" >&2
        exit 2
    fi
done
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet)
"${pip[@]}" install 'maturin>=1.7,<2' pytest pytest-xdist mypy

# have: whether a package can be imported.
have() {
    "$venv/bin/python" -c "import $1" 2>/dev/null
}

# have_torch: whether PyTorch of this version can be imported.
have_torch() {
    [ "$("$venv/bin/python" -c 'import torch; print(torch.__version__.split("+")[0])' 2>/dev/null)" = "$torch" ]
}
export LD_LIBRARY_PATH=$stubs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
if [ "$torch" != none ] && ! have_torch; then
    "${pip[@]}" install --no-deps "torch==$torch" &&
        "${pip[@]}" install filelock typing-extensions sympy mpmath networkx jinja2 markupsafe fsspec numpy &&
        "$venv/bin/python" python/tests/cuda_stubs.py \
            "$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch" "$stubs" ||
        echo "warning: PyTorch $torch cannot be installed" >&2
fi
if have torch && ! { have transformers && have accelerate; }; then
    # The dependencies of accelerate would bring all of CUDA's libraries.
    { "${pip[@]}" install transformers psutil && "${pip[@]}" install --no-deps accelerate; } ||
        echo "warning: transformers cannot be installed" >&2
fi
if have torch && ! { have lightning && have torchmetrics; }; then
    # Likewise. The others are here.
    { "${pip[@]}" install pyyaml packaging tqdm &&
        "${pip[@]}" install --no-deps lightning lightning-utilities torchmetrics; } ||
        echo "warning: lightning cannot be installed" >&2
fi
if have torch && ! have microgpt; then
    # A published GPT. What it needs beside PyTorch prints its model.
    "${pip[@]}" install --no-deps microgpt==0.0.2 || echo "warning: microgpt cannot be installed" >&2
fi
if [ "$jax" != none ] && ! { have jax && have flax && have equinox && have optax; }; then
    "${pip[@]}" install "jax[cpu]==$jax" flax==0.12.8 equinox==0.13.8 optax==0.2.8 ||
        echo "warning: JAX $jax cannot be installed" >&2
fi
if have torch && ! have ipykernel; then
    "${pip[@]}" install ipykernel || echo "warning: ipykernel cannot be installed" >&2
fi
[ "${1:-}" != --environment ] || exit 0

if [ -n "${EXTENSION:-}" ]; then
    # What a wheel would put there. The metadata of the package are checked without building it.
    "$venv/bin/maturin" sdist --manifest-path python/Cargo.toml --out "$target/wheels"
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    rm -rf "$site/everstep"
    cp -r python/everstep "$site/everstep"
    cp "$EXTENSION" "$site/everstep/_everstep.abi3.so"
    printf '#!%s\nimport sys\nfrom everstep.__main__ import main\nsys.exit(main())\n' "$venv/bin/python" >"$venv/bin/everstep"
    chmod +x "$venv/bin/everstep"
else
    "$venv/bin/maturin" build --profile dev --manifest-path python/Cargo.toml \
        --interpreter "$venv/bin/python" --target-dir "$target" --out "$target/wheels"
    wheel=$(ls -t "$target"/wheels/everstep-*.whl | head -1)
    "${pip[@]}" install --force-reinstall --no-deps "$wheel"
fi

# What the package states of its types, beside those of PyTorch, transformers, Lightning and JAX.
if have torch && have transformers && have lightning && have jax; then
    (cd python && "$venv/bin/python" -m mypy --cache-dir "$target/mypy" everstep)
fi

cd python/tests
"$venv/bin/python" -m pytest -q -p no:cacheprovider -n auto --dist worksteal "$@"
if ! have_torch; then
    echo "========================================================================" >&2
    echo "SKIPPED: there is no PyTorch here, so no test of training has run." >&2
    echo "========================================================================" >&2
else
    for package in transformers lightning microgpt ipykernel; do
        have "$package" || echo "SKIPPED: there is no package $package here, so its tests have not run." >&2
    done
fi
if ! have jax; then
    echo "========================================================================" >&2
    echo "SKIPPED: there is no JAX here, so no test of everstep.jax has run." >&2
    echo "========================================================================" >&2
else
    for package in flax equinox optax; do
        have "$package" || echo "SKIPPED: there is no package $package here, so its tests have not run." >&2
    done
fi
