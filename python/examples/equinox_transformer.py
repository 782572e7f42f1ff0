"""A transformer of Equinox that learns to sort numbers.

    everstep launch --workers 4 --respawn equinox_transformer.py --steps 2000
"""

import argparse

import everstep.jax  # before JAX makes its first array
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

LENGTH, KINDS = 8, 16


class Block(eqx.Module):
    norm1: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    norm2: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    dropout: eqx.nn.Dropout

    def __init__(self, width: int, heads: int, key) -> None:
        first, second, third = jax.random.split(key, 3)
        self.norm1, self.norm2 = eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width)
        self.attention = eqx.nn.MultiheadAttention(heads, width, key=first)
        self.up = eqx.nn.Linear(width, 4 * width, key=second)
        self.down = eqx.nn.Linear(4 * width, width, key=third)
        self.dropout = eqx.nn.Dropout(0.1)

    def __call__(self, x, key):
        h = jax.vmap(self.norm1)(x)
        x = x + self.attention(h, h, h)
        h = jax.nn.gelu(jax.vmap(self.up)(jax.vmap(self.norm2)(x)))
        return x + self.dropout(jax.vmap(self.down)(h), key=key)


class Sorter(eqx.Module):
    numbers: eqx.nn.Embedding
    places: jax.Array
    blocks: list[Block]
    out: eqx.nn.Linear

    def __init__(self, layers: int, width: int, key) -> None:
        first, second, third, *keys = jax.random.split(key, 3 + layers)
        self.numbers = eqx.nn.Embedding(KINDS, width, key=first)
        self.places = 0.02 * jax.random.normal(second, (LENGTH, width))
        self.blocks = [Block(width, 4, key) for key in keys]
        self.out = eqx.nn.Linear(width, KINDS, key=third)

    def __call__(self, row, key):
        x = jax.vmap(self.numbers)(row) + self.places
        for block in self.blocks:
            key, own = jax.random.split(key)
            x = block(x, own)
        return jax.vmap(self.out)(x)


class Rows:
    """Rows of numbers, and the same numbers in order."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        row = np.random.default_rng(index).integers(0, KINDS, LENGTH, dtype=np.int32)
        return row, np.sort(row)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    flags = parser.parse_args()
    model = Sorter(flags.layers, flags.width, jax.random.key(1))
    # The arrays are trained. What else a module has stays as it is.
    params, rest = eqx.partition(model, eqx.is_inexact_array)

    def loss(params, batch, key):
        rows, targets = batch
        model = eqx.combine(params, rest)
        logits = jax.vmap(model)(rows, jax.random.split(key, len(rows)))
        chances = jax.nn.log_softmax(logits)
        losses = -jnp.take_along_axis(chances, targets[..., None], -1)
        return losses.mean(), {"accuracy": (logits.argmax(-1) == targets).mean(dtype=jnp.float32)}

    optimizer = everstep.jax.AdamW(1e-3, weight_decay=0.01, groups={"*norm*": {"weight_decay": 0.0}})
    params, report = everstep.jax.train(
        loss, params, Rows(), optimizer=optimizer, steps=flags.steps, data_shards=4, micro_batch=16,
        clip_norm=1.0,
    )  # fmt: skip
    if params is not None:  # a worker elsewhere may have no trained model
        row, ordered = Rows()[0]
        found = eqx.nn.inference_mode(eqx.combine(params, rest))(row, jax.random.key(0)).argmax(-1)
        print(f"{row} sorted is {ordered}, and the model says {found}")
    print("hash", report.state_hash)


if __name__ == "__main__":
    main()
