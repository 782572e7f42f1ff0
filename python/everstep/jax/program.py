"""The program of a micro-batch: one jitted function from the flat vector to loss and gradients.

The flat vector is cut into the parameters inside of the program, and the gradients leave it as
ranges of the flat vector. No argument is donated: the flat vector is the engine's, and sums of
gradients are needed again if a turn is interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from everstep.jax.tree import FlatTree

#: Gradients of so many elements leave by themselves. Smaller ones that follow each other leave as
#: one range, since each range costs the script's thread some microseconds.
RANGE_ELEMENTS = 1 << 16

#: The script's loss: from parameters, statistics if there are any, batch and key.
Loss = Callable[..., Any]


class Found(NamedTuple):
    """What the program has made of a micro-batch. All devices have all of it."""

    loss: jax.Array
    metrics: dict[str, jax.Array]
    #: The next values of the statistics. None if the run has none.
    statistics: Any
    #: The gradients by ranges of the flat vector, with those of earlier micro-batches.
    gradients: list[jax.Array]


class Program:
    """A micro-batch as XLA computes it on one device, or on several with a part of the batch on
    each."""

    def __init__(
        self, loss: Loss, params: FlatTree, statistics: FlatTree | None, devices: Sequence[Any], seed: int
    ) -> None:
        self._loss, self._params, self._statistics = loss, params, statistics
        self._seed = seed
        self.mesh = Mesh(np.array(devices), ("data",))
        #: All of an array on each device.
        self.whole = NamedSharding(self.mesh, PartitionSpec())
        #: A part of the rows on each device.
        self.rows = self.whole
        if len(devices) > 1:
            self.rows = NamedSharding(self.mesh, PartitionSpec("data"))
        self._ranges = _ranges(params)
        #: Where each range of gradients begins in the flat vector.
        self.offsets = [params.leaves[first].offset for first, _ in self._ranges]
        whole = self.whole
        #: From the flat vector, statistics that are carried on, batch, place, factor of the loss and
        #: sums of gradients.
        self.compute = jax.jit(
            self._compute,
            in_shardings=(whole, whole, self.rows, whole, whole, whole),
            out_shardings=whole,
        )

    def count(self) -> int:
        """How many elements the flat vector has."""
        return self._params.end if self._statistics is None else self._statistics.end

    def arguments(self, batch: Any) -> tuple[Any, ...]:
        """The shapes of a first micro-batch's arguments, to compile the program without values."""
        flat = jax.ShapeDtypeStruct((self.count(),), np.float32)
        batch = jax.tree_util.tree_map(lambda it: jax.ShapeDtypeStruct(it.shape, it.dtype), batch)
        place = jax.ShapeDtypeStruct((3,), np.uint32)
        return flat, None, batch, place, jax.ShapeDtypeStruct((), np.float32), None

    def check(self, batch: Any) -> list[str]:
        """Traces the program for batches of these shapes, and returns the names of the metrics.
        Refuses a loss that does not fit."""
        count = self.mesh.size
        if not self.can_share(batch):
            rows = sorted({it.shape[0] if it.shape else 1 for it in jax.tree_util.tree_leaves(batch)})
            raise ValueError(
                f"a batch has arrays of {rows} rows, and the {count} devices of this worker share the "
                f"rows: give a micro_batch that {count} divides, or devices=jax.local_devices()[:1]"
            )
        return sorted(jax.eval_shape(self._compute, *self.arguments(batch)).metrics)

    def can_share(self, batch: Any) -> bool:
        """Whether all devices can have equal parts of the rows of a batch."""
        leaves = jax.tree_util.tree_leaves(batch)
        return self.mesh.size == 1 or all(it.shape and it.shape[0] % self.mesh.size == 0 for it in leaves)

    def key(self, place: Any) -> jax.Array:
        """The key of a place: a step, a data shard and a micro-batch, folded in one by one."""
        key = jax.random.key(self._seed & 0xFFFFFFFF)
        if self._seed >> 32:
            key = jax.random.fold_in(key, self._seed >> 32)
        for number in range(3):
            key = jax.random.fold_in(key, place[number])
        return key

    def _compute(
        self, flat: Any, carried: Any, batch: Any, place: Any, factor: Any, sums: Any
    ) -> Found:
        statistics = None
        if self._statistics is not None:
            first = flat[self._statistics.offset : self._statistics.end]
            carried = first if carried is None else carried
            whole = jnp.concatenate([flat[: self._statistics.offset], carried])
            statistics = self._statistics.of(whole)
        key = self.key(place)

        def scaled(params: Any) -> tuple[Any, tuple[Any, Any, Any]]:
            arguments = (params, batch, key) if statistics is None else (params, statistics, batch, key)
            loss, metrics, following = _parts(self._loss(*arguments), self._statistics)
            return loss * factor, (loss, metrics, following)

        (_, (loss, metrics, following)), gradient = jax.value_and_grad(scaled, has_aux=True)(
            self._params.of(flat)
        )
        leaves = [leaf.reshape(-1) for leaf in jax.tree_util.tree_leaves(gradient)]
        parts = [leaves[first:end] for first, end in self._ranges]
        gradients = [part[0] if len(part) == 1 else jnp.concatenate(part) for part in parts]
        if sums is not None:
            gradients = [before + gradient for before, gradient in zip(sums, gradients)]
        return Found(loss, metrics, following, gradients)


def _ranges(params: FlatTree) -> list[tuple[int, int]]:
    """Which leaves leave together: the first one, and the one after the last one."""
    found: list[tuple[int, int]] = []
    count = RANGE_ELEMENTS
    for number, leaf in enumerate(params.leaves):
        if count >= RANGE_ELEMENTS or leaf.size >= RANGE_ELEMENTS:
            found.append((number, number + 1))
            count = leaf.size
        else:
            found[-1] = found[-1][0], number + 1
            count += leaf.size
    return found


def _parts(found: Any, statistics: FlatTree | None) -> tuple[Any, dict[str, Any], Any]:
    """Loss, metrics and the next statistics of what the script's loss has returned."""
    parts = found if isinstance(found, tuple) else (found,)
    following, metrics = None, {}
    if statistics is not None:
        if len(parts) not in (2, 3):
            raise ValueError(
                "the loss returned no statistics: with statistics= it returns (loss, statistics), or "
                "(loss, statistics, metrics)"
            )
        following = _flat(parts[1], statistics)
        parts = (parts[0], *parts[2:])
    elif len(parts) > 2:
        raise ValueError(
            f"the loss returned {len(parts)} values: it returns the loss, or (loss, metrics)"
        )
    if len(parts) == 2:
        metrics = parts[1]
    loss = jnp.asarray(parts[0])
    if loss.shape != () or not jnp.issubdtype(loss.dtype, jnp.floating):
        raise ValueError(
            f"the loss is of {loss.dtype} with the shape {loss.shape}: return one number, the mean "
            "over the rows of the batch"
        )
    return loss.astype(jnp.float32), _numbers(metrics), following


def _numbers(metrics: Any) -> dict[str, Any]:
    if not isinstance(metrics, Mapping):
        raise ValueError(
            f"the metrics are a {type(metrics).__name__}: the loss returns (loss, metrics), and the "
            'metrics are a dict of numbers, such as {"accuracy": hits.mean()}'
        )
    numbers = {str(name): jnp.asarray(value) for name, value in metrics.items()}
    for name, value in numbers.items():
        if value.shape != ():
            raise ValueError(
                f"the metric {name} has the shape {value.shape}: give one number, such as the mean"
            )
    return {name: value.astype(jnp.float32) for name, value in numbers.items()}


def _flat(following: Any, statistics: FlatTree) -> Any:
    """The next statistics as one vector."""
    found = FlatTree(following, "statistics", statistics.offset)
    if found.layout() != statistics.layout():
        raise ValueError(
            f"the loss returned statistics with the arrays {found.layout()}, and it got "
            f"{statistics.layout()}: return the same tree with new values"
        )
    return jnp.concatenate([it.reshape(-1) for it in jax.tree_util.tree_leaves(following)])
