"""Everstep: training that never loses a step, for PyTorch and JAX.

A script makes a :class:`Run` and iterates over it, or calls :func:`train`, and ``everstep launch``
starts the script. Those are PyTorch's. A script of JAX imports ``everstep.jax``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from everstep._everstep import __version__

if TYPE_CHECKING:
    from everstep.function import train
    from everstep.lion import Lion
    from everstep.run import Run

__all__ = ["Lion", "Run", "__version__", "train"]

#: Coordinators and launchers need no PyTorch, so what needs it is imported when it is asked for.
_MODULES = {"Run": "run", "Lion": "lion", "train": "function"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"everstep.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'everstep' has no attribute {name!r}")
