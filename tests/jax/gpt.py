"""A GPT in plain JAX, for the scripts in this folder."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

#: The width of an attention head.
HEAD = 32


def initial(key: Any, layers: int, width: int, context: int, vocabulary: int) -> dict[str, Any]:
    """Initial parameters."""
    keys = iter(jax.random.split(key, 2 + 4 * layers))
    draw = lambda *shape: 0.02 * jax.random.normal(next(keys), shape, jnp.float32)
    blocks = [
        {
            "attention": draw(width, 3 * width),
            "out": draw(width, width),
            "up": draw(width, 4 * width),
            "down": draw(4 * width, width),
        }
        for _ in range(layers)
    ]
    return {"tokens": draw(vocabulary, width), "places": draw(context, width), "blocks": blocks}


def loss_of(width: int) -> Any:
    """The loss of models of this width: of parameters, tokens with their targets, and a key."""
    heads = width // HEAD

    def loss(params: Any, batch: Any, _key: Any) -> Any:
        tokens, targets = batch
        x = params["tokens"][tokens] + params["places"][: tokens.shape[1]]
        mask = jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool))
        for block in params["blocks"]:
            parts = jnp.split(_normalized(x) @ block["attention"], 3, -1)
            q, k, v = (it.reshape(*it.shape[:2], heads, HEAD).transpose(0, 2, 1, 3) for it in parts)
            scores = jnp.where(mask, q @ k.swapaxes(-1, -2) / math.sqrt(HEAD), -1e9)
            mixed = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
            x = x + mixed @ block["out"]
            x = x + jax.nn.gelu(_normalized(x) @ block["up"]) @ block["down"]
        chances = jax.nn.log_softmax(_normalized(x) @ params["tokens"].T)
        return -jnp.take_along_axis(chances, targets[..., None], -1).mean()

    return loss


def _normalized(x: Any) -> Any:
    centered = x - x.mean(-1, keepdims=True)
    return centered * jax.lax.rsqrt((centered**2).mean(-1, keepdims=True) + 1e-5)
