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

    def publish(self, engine: _everstep.Engine, offset: int, part: Any) -> None:
        """Hands over final gradients, an array of one device or of NumPy. Their first element is the
        one at ``offset`` of the vector. What lies in the host's memory is not copied."""
        values = np.ascontiguousarray(np.asarray(part))
        self._kept.append(values)
        engine.publish(offset, values.ctypes.data, values.size)

    def release(self) -> None:
        """The engine has read all gradients."""
        self._kept.clear()

    def number(self, value: Any) -> Callable[[], float]:
        """Reads a number, which is there when the turn ends."""
        return lambda: float(value)


def parts_of_first_device(arrays: Sequence[Any]) -> list[Any]:
    """What the first device has of arrays that all devices have. The device begins to send the parts
    to the host, all at once, unless it is the host itself."""
    parts = [array.addressable_data(0) for array in arrays]
    for part in parts:
        if part.device.platform != "cpu":
            part.copy_to_host_async()
    return parts
