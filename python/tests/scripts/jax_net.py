"""A small network of JAX, which learns the mean of rows. It has dropout, groups of parameters and a
schedule, and takes two micro-batches for each data shard."""

import argparse
import time
from pathlib import Path

import everstep.jax
import jax
import jax.numpy as jnp
import numpy as np

WIDTH = 24


class Rows:
    def __len__(self) -> int:
        return 300

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        # An augmentation, which follows from epoch and index.
        row = np.sin(np.arange(8) * (1 + index % 7) + index) + 0.1 * np.random.randn(8)
        return row.astype(np.float32), np.float32(row.mean())


def make(key):
    keys = jax.random.split(key, 3)
    return {
        "layers": [
            {"weight": jax.random.normal(keys[0], (8, WIDTH)) / 3, "bias": jnp.zeros(WIDTH)},
            {"weight": jax.random.normal(keys[1], (WIDTH, WIDTH)) / 5, "bias": jnp.zeros(WIDTH)},
        ],
        "out": jax.random.normal(keys[2], (WIDTH, 1)) / 5,
        "empty": jnp.zeros((0, 3)),
    }


def forward(params, x, key):
    for layer in params["layers"]:
        key, own = jax.random.split(key)
        x = jnp.tanh(x @ layer["weight"] + layer["bias"])
        x = x * jax.random.bernoulli(own, 0.9, x.shape)
    return (x @ params["out"])[:, 0]


def loss(params, batch, key):
    x, y = batch
    found = forward(params, x, key)
    return ((found - y) ** 2).mean(), {"greatest": jnp.abs(found).max()}


def normalized(params, statistics, batch, key):
    """The loss of rows that are normalized by their batch, whose running mean is a statistic."""
    x, y = batch
    mean = x.mean(0)
    following = {"mean": 0.9 * statistics["mean"] + 0.1 * mean, "count": statistics["count"] + 1.0}
    value, metrics = loss(params, (x - mean, y), key)
    return value, following, metrics


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--optimizer", choices=["adamw", "sgd", "lion"], default="adamw")
    parser.add_argument("--statistics", action="store_true")
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("--save")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hold", type=Path, help="a file with the step at which the script waits")
    flags = parser.parse_args()
    warm = lambda step: 3e-3 * jnp.minimum(1.0, (step + 1) / 5)
    groups = {"*bias": {"weight_decay": 0.0}}
    optimizer = {
        "adamw": everstep.jax.AdamW(warm, b2=0.95, weight_decay=0.1, groups=groups),
        "sgd": everstep.jax.SGD(1e-2, momentum=0.9, nesterov=True),
        "lion": everstep.jax.Lion(1e-3),
    }[flags.optimizer]

    def wait(run, result) -> None:
        while flags.hold and run.step > int(flags.hold.read_text() or 0):
            time.sleep(0.01)

    statistics = {"mean": jnp.zeros(8), "count": jnp.zeros(())} if flags.statistics else None
    trained, report = everstep.jax.train(
        normalized if flags.statistics else loss,
        make(jax.random.key(flags.seed)),
        Rows(),
        optimizer=optimizer,
        statistics=statistics,
        validation=Rows() if flags.validate else None,
        evaluate_every=10 if flags.validate else None,
        callbacks=[wait],
        save=flags.save,
        steps=flags.steps,
        data_shards=4,
        micro_batch=4,
        accumulate=2,
        clip_norm=1.0,
    )
    if flags.statistics:
        _, found = trained
        assert abs(float(found["count"]) - 2.0 * flags.steps) < 1e-3, found["count"]
        assert float(jnp.abs(found["mean"]).max()) > 0.0
    print(f"{len(jax.local_devices())} devices")
    print("hash", report.state_hash)


if __name__ == "__main__":
    main()
