"""Trains with Everstep, and then the same in a plain loop of JAX with Optax. The file of the second
argument gets the losses of the plain loop, and how far its parameters are from Everstep's."""

import json
import os
import sys

import everstep.jax
import jax
import jax.numpy as jnp
import numpy as np
import optax

kind, path = sys.argv[1:]
STEPS, SHARDS, ROWS, SEED = 40, 2, 8, 3
CLIP_NORM = 0.5 if kind == "clipped" else None
#: Optax computes 1 - b2**step in f32. With 0.999 the error of that is 1e-5 in the first steps.
B2 = 0.95
RATE = optax.cosine_decay_schedule(1e-2, STEPS)
OURS = {
    "adamw": everstep.jax.AdamW(RATE, b2=B2, weight_decay=0.05),
    "clipped": everstep.jax.AdamW(RATE, b2=B2),
    "adam": everstep.jax.Adam(RATE, b2=B2),
    "sgd": everstep.jax.SGD(RATE, momentum=0.9),
    "nesterov": everstep.jax.SGD(RATE, momentum=0.9, nesterov=True),
    "lion": everstep.jax.Lion(1e-3),
}
THEIRS = {
    "adamw": optax.adamw(RATE, b2=B2, weight_decay=0.05),
    "clipped": optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(RATE, b2=B2)),
    "adam": optax.adam(RATE, b2=B2),
    "sgd": optax.sgd(RATE, momentum=0.9),
    "nesterov": optax.sgd(RATE, momentum=0.9, nesterov=True),
    "lion": optax.lion(1e-3),
}


class Rows:
    def __len__(self) -> int:
        return 128

    def __getitem__(self, index: int) -> np.ndarray:
        return np.cos(np.arange(16, dtype=np.float32) * (1 + index % 5) + index)


def make():
    first, second = jax.random.split(jax.random.key(SEED))
    return {
        "in": jax.random.normal(first, (16, 32)) / 4, "bias": jnp.zeros(32),
        "out": jax.random.normal(second, (32, 16)) / 6,
    }  # fmt: skip


def loss(params, x, key):
    hidden = jnp.tanh(x @ params["in"] + params["bias"])
    hidden = hidden * jax.random.bernoulli(key, 0.9, hidden.shape)
    return ((hidden @ params["out"] - x[:, ::-1]) ** 2).mean()


run = everstep.jax.Run(
    loss, make(), data=Rows(), optimizer=OURS[kind], steps=STEPS, data_shards=SHARDS,
    micro_batch=ROWS, clip_norm=CLIP_NORM, seed=SEED,
)  # fmt: skip
for _ in run:
    pass

params, optimizer = make(), THEIRS[kind]
state = optimizer.init(params)
gradient = jax.jit(jax.value_and_grad(loss))
losses = []
for step in range(1, STEPS + 1):
    found = []
    for shard in range(SHARDS):
        x = np.stack([Rows()[index] for _, index in run._engine.rows(step, shard, 0)])
        key = jax.random.key(SEED)
        for number in (step, shard, 0):
            key = jax.random.fold_in(key, number)
        found.append(gradient(params, x, key))
    losses.append(float(sum(value for value, _ in found)) / SHARDS)
    mean = jax.tree.map(lambda *parts: sum(parts) / SHARDS, *(part for _, part in found))
    updates, state = optimizer.update(mean, state, params)
    params = optax.apply_updates(params, updates)
apart = jax.tree.map(lambda one, other: float(jnp.abs(one - other).max()), params, run.params)
partial = f"{path}-{os.getpid()}"
with open(partial, "w") as file:
    json.dump({"losses": losses, "apart": max(jax.tree.leaves(apart))}, file)
os.replace(partial, path)
