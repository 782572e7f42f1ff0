"""The scalars that a script logs: numbers beside the loss, with a mean for each step."""

from __future__ import annotations

import re
from typing import Any

import torch

#: The most names of a run.
MAX_NAMES = 16
#: What a name may be.
_NAME = re.compile(r"[A-Za-z0-9_./-]{1,32}")


class Scalars:
    """The scalars of the turn under way."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._values: dict[str, Any] = {}

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
            if isinstance(value, torch.Tensor) and value.numel() != 1:
                raise ValueError(
                    f"run.log: {name} has {value.numel()} elements: give one number, such as the "
                    "mean"
                )
            self._names.add(name)
            self._values[name] = value
        if len(self._names) > MAX_NAMES:
            raise ValueError(f"run.log: a run has at most {MAX_NAMES} names: {sorted(self._names)}")

    def take(self) -> list[tuple[str, float]]:
        """The values of the turn, which is over."""
        taken = [(name, float(value)) for name, value in self._values.items()]
        self._values.clear()
        return taken
