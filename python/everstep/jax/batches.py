"""The micro-batches of a run, as arrays of NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from everstep.samples import Place, SampleKey, SeededDataset

#: The kinds of NumPy's types that no array of JAX has.
FOREIGN_KINDS = "OSUMm"


def stacked(samples: Sequence[Any]) -> Any:
    """A batch of samples, which are equal pytrees of arrays and numbers: each array of the batch has
    a row for each sample."""
    try:
        return jax.tree_util.tree_map(lambda *rows: np.stack([np.asarray(it) for it in rows]), *samples)
    except ValueError as error:
        raise ValueError(
            f"the samples of a batch do not fit each other: {error}. Give all samples one shape, as by "
            "padding, or give collate="
        ) from error


class Batches:
    """The micro-batches by their places. All have the same shapes, as they have one program."""

    def __init__(
        self,
        keyed: SeededDataset,
        micro_batch: int,
        collate: Callable[[list[Any]], Any] | None,
    ) -> None:
        self._keyed = keyed
        self._collate = collate or stacked
        #: A batch of the shapes that all have.
        self.example = self.made([self._keyed[0, 0]] * micro_batch)

    def of(self, rows: Sequence[SampleKey], place: Place) -> Any:
        """The micro-batch with these samples."""
        batch = self.made([self._keyed[row] for row in rows])
        expected, found = _shapes(self.example), _shapes(batch)
        if found != expected:
            step, shard, micro = place
            raise ValueError(
                f"micro-batch {micro} of data shard {shard} in step {step} has other shapes than the "
                f"first sample: {found}, in the place of {expected}. Each shape would be a program "
                "of its own, so give all samples one shape, as by padding"
            )
        return batch

    def made(self, samples: list[Any]) -> Any:
        """A batch of these samples."""
        return self.arrays(self._collate(samples))

    def arrays(self, batch: Any) -> Any:
        """A batch as arrays of NumPy. Refuses what is no number."""
        batch = jax.tree_util.tree_map(np.asarray, batch)
        for path, value in jax.tree_util.tree_flatten_with_path(batch)[0]:
            if value.dtype.kind in FOREIGN_KINDS:
                raise TypeError(
                    f"the batch has values of {value.dtype} at {jax.tree_util.keystr(path) or 'its root'}, "
                    "which no array of JAX has: give samples of numbers"
                )
        return batch


def _shapes(batch: Any) -> str:
    """The shapes and types of a batch, as a text."""
    return str(jax.tree_util.tree_map(lambda it: f"{it.dtype}{list(it.shape)}", batch))
