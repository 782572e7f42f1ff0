"""What decides JAX's bits beside a script: variables of the process, settings, versions, devices.

XLA reads the variables when JAX looks for its devices, which happens at the first array. So they
are set before, or the script ends with an error.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from everstep.process import kind_of_cpu

#: The variable by which XLA knows how many threads compute on the CPU.
THREADS = "NPROC"
#: The variable with XLA's flags.
FLAGS = "XLA_FLAGS"
#: What has a GPU compute the same bits each time. It also keeps XLA from choosing algorithms by
#: the time that they take.
REPEATABLE = "--xla_gpu_deterministic_ops=true"
#: The settings of JAX that decide bits.
SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
)


def prepare() -> None:
    """Sets the variables. Refuses a process without JAX, or one in which JAX has read them already
    and has read others."""
    try:
        import jax  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "everstep.jax needs JAX, which cannot be imported here: pip install 'everstep[jax]', or "
            "pip install jax with the extra of your device, such as 'jax[tpu]' or 'jax[cuda12]'"
        ) from error
    wanted = {THREADS: os.environ.get("EVERSTEP_THREADS", "1"), FLAGS: _flags()}
    differing = [name for name, value in wanted.items() if os.environ.get(name) != value]
    if differing and _has_begun():
        raise RuntimeError(
            f"JAX has looked for its devices before everstep.jax was imported, without {_told(wanted)}, "
            "and its bits would not be those of other workers: import everstep.jax before the "
            "script makes its first array, or set these variables"
        )
    os.environ.update(wanted)


def _flags() -> str:
    """XLA's flags: those of the user, and those that are missing there."""
    flags = os.environ.get(FLAGS, "").split()
    named = {flag.partition("=")[0] for flag in flags}
    own = [REPEATABLE]
    # `everstep launch --isa avx2` states it so.
    if os.environ.get("ATEN_CPU_CAPABILITY") == "avx2":
        own.append("--xla_cpu_max_isa=AVX2")
    return " ".join(flags + [flag for flag in own if flag.partition("=")[0] not in named])


def _told(variables: dict[str, str]) -> str:
    return " and ".join(f'{name}="{value}"' for name, value in variables.items())


def _has_begun() -> bool:
    """Whether JAX has looked for its devices. JAX has no public name for that."""
    from jax._src import xla_bridge

    return bool(xla_bridge.backends_are_initialized())


def statement(devices: Sequence[Any]) -> str:
    """The versions, the settings and the number of devices. All workers of a run have the same."""
    import jax
    import jaxlib

    settings = [f"{name}={getattr(jax.config, name)}" for name in SETTINGS]
    count = f"{len(devices)} device{'s' if len(devices) > 1 else ''}"
    return ", ".join([jax.__version__, f"jaxlib {jaxlib.__version__}", count, *settings])


def processor(devices: Sequence[Any]) -> str:
    """What computes, the rarest cause of other bits last: a cluster keeps 64 letters. Workers that
    differ in it may have other bits."""
    first = devices[0]
    kind = kind_of_cpu() if first.platform == "cpu" else first.device_kind
    limit = next((it for it in os.environ[FLAGS].split() if it.startswith("--xla_cpu_max_isa=")), "")
    isa = f" {limit.partition('=')[2]}" if limit and first.platform == "cpu" else ""
    return f"jax {first.platform}{isa}, {len(devices)} x {kind}"
