"""Compiles the program of everstep.jax with the real compiler for TPUs, on a machine without one, and
prints what it takes.

The program is that of `everstep.jax.Run` for a GPT, with the rows of a micro-batch shared by the chips
of a topology. This shows that the program is valid for a TPU and fits into its memory. It shows
nothing of its speed, and nothing of its results.

    pip install 'jax[cpu]==0.10.2' libtpu==0.0.52 ./python
    python tests/jax/compile_for_tpu.py [--topology v5e:2x2] [--layers 4] [--width 128] …
"""

from __future__ import annotations

import argparse
import json
import os
import time

# There is no TPU to ask, and the CPU makes the parameters.
os.environ.update({"TPU_SKIP_MDS_QUERY": "1", "JAX_PLATFORMS": "cpu"})

import everstep.jax  # noqa: F401, before JAX makes its first array
import jax
import numpy as np
from everstep.jax.program import Program
from everstep.jax.tree import FlatTree
from gpt import initial, loss_of
from jax.experimental import topologies


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--topology", default="v5e:2x2")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=256)
    parser.add_argument("--rows", type=int, default=8, help="rows of a micro-batch")
    flags = parser.parse_args()
    topology = topologies.get_topology_desc(platform="tpu", topology_name=flags.topology)
    shape = (flags.layers, flags.width, flags.context, flags.vocabulary)
    # No value of a parameter is needed.
    params = jax.eval_shape(lambda key: initial(key, *shape), jax.random.key(0))
    params = jax.tree.map(lambda it: np.zeros(it.shape, it.dtype), params)
    program = Program(loss_of(flags.width), FlatTree(params, "params"), None, topology.devices, seed=1)
    tokens = np.zeros((flags.rows, flags.context), np.int32)
    program.check((tokens, tokens))
    began = time.monotonic()
    compiled = program.compute.lower(*program.arguments((tokens, tokens))).compile()
    seconds = time.monotonic() - began
    memory, costs = compiled.memory_analysis(), compiled.cost_analysis()
    costs = costs[0] if isinstance(costs, list) else costs
    told = {
        "topology": flags.topology,
        "chips": len(topology.devices),
        "kind": topology.devices[0].device_kind,
        "parameters": program.count(),
        "compile_seconds": round(seconds, 1),
        "flops_of_a_chip": costs.get("flops"),
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "code_bytes": memory.generated_code_size_in_bytes,
    }
    print(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()
