"""Compares the pace of everstep.jax with that of a plain loop of JAX, on the same GPT and batches.

    python tests/jax/throughput.py [--steps 60] [--rounds 5] [--layers 4] [--width 128]

Each round runs both, one after the other in processes of their own, so that a change of the machine's
pace meets both. A round's figure is the median of the steps after the first third. Run it on a quiet
machine: each process computes on one thread, and the engine of Everstep sends on another one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

#: Data shards of a step, and rows of a micro-batch.
SHARDS, ROWS = 2, 4
CONTEXT, VOCABULARY = 128, 256


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--role", choices=["everstep", "plain"], help="what a process of a round does")
    flags = parser.parse_args()
    if flags.role is not None:
        seconds = _everstep(flags) if flags.role == "everstep" else _plain(flags)
        print(json.dumps(statistics.median(seconds[flags.steps // 3 :])))
        return
    rounds = [{role: _measured(role, flags) for role in ("plain", "everstep")} for _ in range(flags.rounds)]
    for number, it in enumerate(rounds, 1):
        plain, own = 1e3 * it["plain"], 1e3 * it["everstep"]
        print(f"round {number}: plain {plain:.1f} ms, everstep {own:.1f} ms, {plain / own:.3f} of its pace")
    ratio = statistics.median(it["plain"] / it["everstep"] for it in rounds)
    print(f"median of {flags.rounds} rounds: {ratio:.3f} of the pace of the plain loop")


def _measured(role: str, flags: argparse.Namespace) -> float:
    """The median step of a process, seconds."""
    command = [sys.executable, __file__, "--role", role]
    for name in ("steps", "layers", "width"):
        command += [f"--{name}", str(getattr(flags, name))]
    environment = {**os.environ, "EVERSTEP_LOG": "warn"}
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return float(json.loads(told.stdout.strip().splitlines()[-1]))


class _Tokens:
    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int):
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
    )
    began: dict[int, float] = {}
    for result in run:
        began.setdefault(result.step, time.perf_counter())
    return _between(list(began.values()))


def _plain(flags: argparse.Namespace) -> list[float]:
    import everstep.jax  # noqa: F401, for the same number of threads
    import jax
    import numpy as np
    import optax
    from gpt import initial, loss_of

    params = initial(jax.random.key(0), flags.layers, flags.width, CONTEXT, VOCABULARY)
    optimizer, loss, data = optax.adamw(1e-3), loss_of(flags.width), _Tokens()
    state = optimizer.init(params)

    def step(params, state, batches, key):
        # As many rows at once as Everstep has: each data shard is a pass of its own.
        found = [jax.value_and_grad(loss)(params, batch, key) for batch in batches]
        mean = jax.tree.map(lambda *parts: sum(parts) / SHARDS, *(gradient for _, gradient in found))
        updates, state = optimizer.update(mean, state, params)
        return optax.apply_updates(params, updates), state, found[0][0]

    step = jax.jit(step, donate_argnums=(0, 1))
    began = []
    for number in range(flags.steps):
        began.append(time.perf_counter())
        rows = np.random.default_rng(number).integers(0, len(data), (SHARDS, ROWS))
        batches = [jax.tree.map(lambda *it: np.stack(it), *(data[int(row)] for row in part)) for part in rows]
        params, state, value = step(params, state, batches, jax.random.key(number))
        float(value)
    return _between(began)


def _between(moments: list[float]) -> list[float]:
    return [after - before for before, after in zip(moments, moments[1:])]


if __name__ == "__main__":
    main()
