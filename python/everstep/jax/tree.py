"""A pytree of f32 arrays as a part of the flat vector."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, NamedTuple

import jax
import numpy as np

from everstep import tensor_file


class Leaf(NamedTuple):
    """An array of the tree, by its path in the tree."""

    name: str
    shape: tuple[int, ...]
    #: Where its first element lies in the flat vector.
    offset: int
    #: How many elements it has.
    size: int


class FlatTree:
    """The arrays of a pytree in the flat vector, one after the other in the order of JAX."""

    def __init__(self, tree: Any, what: str, offset: int = 0) -> None:
        found, self._structure = jax.tree_util.tree_flatten_with_path(tree)
        #: The arrays, also those without any element.
        self.leaves: list[Leaf] = []
        begin = offset
        for path, value in found:
            name = jax.tree_util.keystr(path, simple=True, separator=".") or what
            _check(name, value, what)
            shape = tuple(int(size) for size in np.shape(value))
            self.leaves.append(Leaf(name, shape, begin, math.prod(shape)))
            begin += math.prod(shape)
        #: The range of the tree in the flat vector.
        self.offset, self.end = offset, begin
        counts = Counter(leaf.name for leaf in self.leaves)
        twice = next((name for name, count in counts.items() if count > 1), None)
        if twice is not None:
            raise ValueError(f"{what}: two arrays of the tree have the path {twice}: rename one")

    def layout(self) -> list[tuple[str, list[int]]]:
        """The names and shapes of all arrays that have elements."""
        return [(leaf.name, list(leaf.shape)) for leaf in self.leaves if leaf.size]

    def write(self, tree: Any, flat: np.ndarray) -> None:
        """Copies the arrays of such a tree to their places in the flat vector."""
        for leaf, value in zip(self.leaves, jax.tree_util.tree_leaves(tree)):
            flat[leaf.offset : leaf.offset + leaf.size] = np.asarray(value).reshape(-1)

    def of(self, flat: Any) -> Any:
        """The tree with its arrays cut out of the flat vector, of NumPy or of JAX."""
        parts = [flat[it.offset : it.offset + it.size].reshape(it.shape) for it in self.leaves]
        return jax.tree_util.tree_unflatten(self._structure, parts)

    def entries(self, flat: np.ndarray) -> dict[str, tensor_file.Entry]:
        """The arrays as a file's tensors."""
        return {leaf.name: _entry(leaf, flat) for leaf in self.leaves if leaf.size}

    def take(self, found: dict[str, tuple[list[int], memoryview]], flat: np.ndarray) -> None:
        """Copies a file's tensors to their places in the flat vector."""
        for leaf in self.leaves:
            if leaf.size:
                part = np.frombuffer(found[leaf.name][1], np.float32)
                flat[leaf.offset : leaf.offset + leaf.size] = part


def aligned(count: int) -> np.ndarray:
    """Memory for so many f32 elements, which a CPU's device uses where it lies: XLA wants it
    aligned to 64 bytes."""
    memory = np.zeros(4 * count + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + 4 * count].view(np.float32)


def _entry(leaf: Leaf, flat: np.ndarray) -> tensor_file.Entry:
    part = flat[leaf.offset : leaf.offset + leaf.size]
    return tensor_file.Entry("F32", list(leaf.shape), part.nbytes, lambda: part.data)


def _check(name: str, value: Any, what: str) -> None:
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        raise TypeError(
            f"{what}: {name} is a {type(value).__name__}, and all leaves of the tree are arrays of "
            "float32: leave other values out, as eqx.partition(model, eqx.is_inexact_array) does for "
            "a module of Equinox, and have the loss put them back"
        )
    if value.dtype != np.float32:
        raise TypeError(
            f"{what}: {name} is of {value.dtype}, and all leaves of the tree are of float32. For less "
            "precise arithmetic cast them in the loss, as in x.astype(jnp.bfloat16)"
        )
