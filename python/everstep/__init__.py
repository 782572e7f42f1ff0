"""Everstep: training that never loses a step, for PyTorch.

A script makes a :class:`Run` and iterates over it, and ``everstep launch`` starts the script.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everstep._everstep import __version__

if TYPE_CHECKING:
    from everstep.lion import Lion
    from everstep.run import Run

__all__ = ["Lion", "Run", "__version__"]


def __getattr__(name: str) -> Any:
    # Coordinators and launchers need no PyTorch, so what needs it is imported when it is asked for.
    if name == "Run":
        from everstep.run import Run

        return Run
    if name == "Lion":
        from everstep.lion import Lion

        return Lion
    raise AttributeError(f"module 'everstep' has no attribute {name!r}")
