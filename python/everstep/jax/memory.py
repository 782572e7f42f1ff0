"""The memory in which JAX and the engine meet: parameters go in, and gradients come out.

The engine writes the flat vector only while the script's thread waits for it. JAX computes while
that thread does other things. So the thread waits for the results of a turn before it asks for the
next one, and no computation reads the vector while the engine writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from everstep import _everstep
from everstep.jax.tree import aligned


class Memory:
    """The flat vector of parameters and statistics, and the gradients of the turn under way."""

    def __init__(self, count: int, sharding: Sharding) -> None:
        #: The vector, as the engine reads and writes it.
        self.host = aligned(count)
        self._sharding = sharding
        self._array: Any = None
        #: How many writes of the engine the array has.
        self._writes = 0
        #: What the engine may still read.
        self._kept: list[np.ndarray] = []

    def on_devices(self, writes: int) -> Any:
        """The vector, as it is after so many writes of the engine, on all devices. On the CPU it is
        the engine's memory itself, which no program may take as a donation."""
        if self._array is None or writes != self._writes:
            self._array = jax.device_put(self.host, self._sharding, may_alias=True)
            self._writes = writes
        return self._array

    def publish(self, engine: _everstep.Engine, offset: int, gradient: Any) -> None:
        """Hands over a final gradient. Its first element is the one at ``offset`` of the vector."""
        self.publish_host(engine, offset, of_first_device(gradient))

    def publish_host(self, engine: _everstep.Engine, offset: int, values: np.ndarray) -> None:
        """As :meth:`publish`, of values in the host's memory."""
        self._kept.append(values)
        engine.publish(offset, values.ctypes.data, values.size)

    def release(self) -> None:
        """The engine has read all gradients."""
        self._kept.clear()

    def number(self, value: Any) -> Callable[[], float]:
        """Reads a number, which is there when the turn ends."""
        return lambda: float(value)


def of_first_device(array: Any) -> np.ndarray:
    """An array that all devices have, as contiguous memory of the host. On the CPU it is the
    device's memory itself."""
    return np.ascontiguousarray(np.asarray(array.addressable_data(0)))


def start_copies(arrays: Sequence[Any]) -> None:
    """Has devices send arrays to the host, all at once. Reading one then waits for that one."""
    for array in arrays:
        if array.device_set and next(iter(array.device_set)).platform != "cpu":
            array.copy_to_host_async()
