"""A GPT of Flax on the characters of a text.

    everstep launch --workers 4 --respawn flax_gpt.py --text shakespeare.txt --steps 5000
"""

import argparse
from pathlib import Path

import everstep.jax  # before JAX makes its first array
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax


class Block(nn.Module):
    heads: int
    dropout: float

    @nn.compact
    def __call__(self, x, is_training: bool):
        drop = nn.Dropout(self.dropout, deterministic=not is_training)
        mask = nn.make_causal_mask(x[..., 0])
        attention = nn.MultiHeadDotProductAttention(self.heads)
        x = x + drop(attention(nn.LayerNorm()(x), mask=mask))
        hidden = nn.gelu(nn.Dense(4 * x.shape[-1])(nn.LayerNorm()(x)))
        return x + drop(nn.Dense(x.shape[-1])(hidden))


class GPT(nn.Module):
    vocabulary: int
    context: int
    layers: int
    heads: int
    width: int
    dropout: float

    @nn.compact
    def __call__(self, tokens, is_training: bool = False):
        embedding = nn.Embed(self.vocabulary, self.width)
        places = self.param("places", nn.initializers.normal(0.02), (self.context, self.width))
        x = embedding(tokens) + places[: tokens.shape[1]]
        for _ in range(self.layers):
            x = Block(self.heads, self.dropout)(x, is_training)
        return embedding.attend(nn.LayerNorm()(x))  # tied


class Characters:
    """Windows of a text: each begins one character later than the one before."""

    def __init__(self, text: str, context: int) -> None:
        self.letters = sorted(set(text))
        numbers = {letter: number for number, letter in enumerate(self.letters)}
        self.text = np.array([numbers[letter] for letter in text], np.int32)
        self.context = context

    def __len__(self) -> int:
        return len(self.text) - self.context

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        window = self.text[index : index + self.context + 1]
        return window[:-1], window[1:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", type=Path, help="a text file [default: a made-up text]")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--dropout", type=float, default=0.1)
    flags = parser.parse_args()
    made_up = "".join(f"{n} and {n + 1} are {2 * n + 1}. " for n in range(500))
    data = Characters(flags.text.read_text() if flags.text else made_up, flags.context)

    model = GPT(
        len(data.letters), flags.context, flags.layers, flags.heads, flags.width, flags.dropout
    )
    params = model.init(jax.random.key(1), data[0][0][None])["params"]

    def loss(params, batch, key):
        tokens, targets = batch
        logits = model.apply({"params": params}, tokens, is_training=True, rngs={"dropout": key})
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        return losses.mean(), {"accuracy": (logits.argmax(-1) == targets).mean(dtype=jnp.float32)}

    rate = optax.warmup_cosine_decay_schedule(0.0, 1e-3, max(1, flags.steps // 20), flags.steps, 1e-4)
    # Matrices decay, and vectors do not.
    groups = {pattern: {"weight_decay": 0.0} for pattern in ("*.bias", "*.scale")}
    optimizer = everstep.jax.AdamW(rate, b2=0.95, weight_decay=0.1, groups=groups)
    params, report = everstep.jax.train(
        loss, params, data, optimizer=optimizer, steps=flags.steps, data_shards=4, micro_batch=8,
        clip_norm=1.0, save="flax_gpt.safetensors",
    )  # fmt: skip
    print("hash", report.state_hash)


if __name__ == "__main__":
    main()
