"""Compares the pace of everstep.jax with that of JAX without it, on the same GPT and batches.

    python tests/jax/throughput.py [--workers 2] [--steps 60] [--rounds 5] [--layers 4] [--width 128]

With one worker the peer is a plain loop. With two it is two processes of JAX, whose devices make one
mesh (`jax.distributed`), so that XLA adds up the gradients of both. Each round runs Everstep and the
peer one after the other, so that a change of the machine's pace meets both. A round's figure is the
median of the steps after the first third. It says something on a quiet machine alone, with a core for
each process.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

#: Data shards of a step, and rows of a micro-batch.
SHARDS, ROWS = 2, 4
CONTEXT, VOCABULARY = 128, 256


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=1, choices=[1, 2])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--role", choices=["everstep", "peer"], help="what a process of a round does")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--told", type=Path, help="the file that gets the median step of a process")
    flags = parser.parse_args()
    if flags.role is not None:
        seconds = _everstep(flags) if flags.role == "everstep" else _peer(flags)
        Path(f"{flags.told}-{os.getpid()}").write_text(str(statistics.median(seconds[flags.steps // 3 :])))
        return
    ratios = []
    for number in range(1, flags.rounds + 1):
        peer, own = (1e3 * _measured(role, flags) for role in ("peer", "everstep"))
        ratios.append(peer / own)
        print(f"round {number}: peer {peer:.1f} ms, everstep {own:.1f} ms, {peer / own:.3f} of its pace")
    print(f"median of {flags.rounds} rounds: {statistics.median(ratios):.3f} of the pace of the peer")


def _measured(role: str, flags: argparse.Namespace) -> float:
    """The median step of the processes of one side, seconds."""
    with TemporaryDirectory() as folder:
        script = [__file__, "--role", role, "--told", f"{folder}/told", "--port", str(_free_port())]
        for name in ("workers", "steps", "layers", "width"):
            script += [f"--{name}", str(getattr(flags, name))]
        python = [sys.executable]
        commands = [[*python, *script, "--rank", str(rank)] for rank in range(flags.workers)]
        if role == "everstep":
            launch = ["-m", "everstep", "launch", "--workers", str(flags.workers), "--dir", f"{folder}/run"]
            commands = [[*python, *launch, *script]]
        processes = [subprocess.Popen(command, stdout=sys.stderr) for command in commands]
        codes = [process.wait() for process in processes]
        if any(codes):
            raise SystemExit(f"a process of {role} has ended with {codes}")
        return statistics.mean(float(path.read_text()) for path in Path(folder).glob("told-*"))


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class _Tokens:
    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> Any:
        import numpy as np

        row = (np.arange(CONTEXT + 1, dtype=np.int32) * (1 + index % 5) + index) % VOCABULARY
        return row[:-1], row[1:]


def _everstep(flags: argparse.Namespace) -> list[float]:
    import everstep.jax
    import jax
    from gpt import initial, loss_of

    params = initial(jax.random.key(0), flags.layers, flags.width, CONTEXT, VOCABULARY)
    run = everstep.jax.Run(
        loss_of(flags.width), params, data=_Tokens(), optimizer=everstep.jax.AdamW(1e-3),
        steps=flags.steps, data_shards=SHARDS, micro_batch=ROWS,
    )  # fmt: skip
    began: dict[int, float] = {}
    for result in run:
        began.setdefault(result.step, time.perf_counter())
    return _between(list(began.values()))


def _peer(flags: argparse.Namespace) -> list[float]:
    import everstep.jax  # noqa: F401, for the same number of threads
    import jax
    import numpy as np
    import optax
    from gpt import initial, loss_of
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    if flags.workers > 1:
        address = f"127.0.0.1:{flags.port}"
        jax.distributed.initialize(address, num_processes=flags.workers, process_id=flags.rank)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    whole, rows = (NamedSharding(mesh, PartitionSpec(*it)) for it in ((), ("data",)))
    params = initial(jax.random.key(0), flags.layers, flags.width, CONTEXT, VOCABULARY)
    optimizer, loss, data = optax.adamw(1e-3), loss_of(flags.width), _Tokens()
    params = jax.device_put(jax.tree.map(np.asarray, params), whole)
    state = jax.jit(optimizer.init, out_shardings=whole)(params)
    placed = lambda it: it if flags.workers == 1 else jax.make_array_from_process_local_data(rows, it)
    # A process computes as many rows at once as a worker of Everstep does.
    passes = SHARDS // flags.workers

    def step(params: Any, state: Any, batches: Any, key: Any) -> Any:
        found = [jax.value_and_grad(loss)(params, batch, key) for batch in batches]
        mean = jax.tree.map(lambda *parts: sum(parts) / passes, *(gradient for _, gradient in found))
        updates, state = optimizer.update(mean, state, params)
        return optax.apply_updates(params, updates), state, found[0][0]

    compiled = jax.jit(step, donate_argnums=(0, 1), out_shardings=whole)
    began = []
    for number in range(flags.steps):
        began.append(time.perf_counter())
        drawn = np.random.default_rng(number).integers(0, len(data), (SHARDS, ROWS))
        own = drawn[flags.rank * passes : (flags.rank + 1) * passes]
        stacked = [jax.tree.map(lambda *it: np.stack(it), *(data[int(row)] for row in part)) for part in own]
        batches = jax.tree.map(placed, stacked)
        params, state, value = compiled(params, state, batches, jax.random.key(number))
        float(np.asarray(value.addressable_data(0)))
    return _between(began)


def _between(moments: list[float]) -> list[float]:
    return [after - before for before, after in zip(moments, moments[1:])]


if __name__ == "__main__":
    main()
