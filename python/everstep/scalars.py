"""The scalars that a script logs: numbers beside the loss, with a mean for each step."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Protocol

#: The most names of a run.
MAX_NAMES = 16
#: What a name may be.
_NAME = re.compile(r"[A-Za-z0-9_./-]{1,32}")


class Reader(Protocol):
    """Reads numbers, wherever they are."""

    def number(self, value: Any) -> Callable[[], float]:
        """Reads a value of one element, as it is now. Does not wait for what is computed after."""


class Scalars:
    """The scalars of the turn under way."""

    def __init__(self, memory: Reader) -> None:
        self._memory = memory
        self._names: set[str] = set()
        #: How to read each value.
        self._values: dict[str, Callable[[], float]] = {}

    def begin(self) -> None:
        """A turn begins, or begins again."""
        self._values.clear()

    def log(self, values: dict[str, Any]) -> None:
        """Takes values. A later one of the same name and turn takes the place of an earlier one."""
        for name, value in values.items():
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"run.log: {name!r} cannot be a name: a name has 1 to 32 letters, digits and "
                    "_ - . /"
                )
            elements = math.prod(getattr(value, "shape", ()))
            if elements != 1:
                raise ValueError(
                    f"run.log: {name} has {elements} elements: give one number, such as the mean"
                )
            self._names.add(name)
            self._values[name] = self._memory.number(value)
        if len(self._names) > MAX_NAMES:
            raise ValueError(f"run.log: a run has at most {MAX_NAMES} names: {sorted(self._names)}")

    def take(self) -> list[tuple[str, float]]:
        """The values of the turn, which is over."""
        taken = [(name, read()) for name, read in self._values.items()]
        self._values.clear()
        return taken
