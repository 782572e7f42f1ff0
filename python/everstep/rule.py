"""The settings of an optimizer's groups as plain data, as the engine reads them.

The names of the settings are those of ``torch.optim``. A setting that an optimizer does not have
stands as zero. This module needs no framework.
"""

from __future__ import annotations

import struct
from typing import Any

#: The rate, the betas and the momentum of a group at one step.
Entry = tuple[float, tuple[float, float], float]


def group_of(kind: str, group: dict[str, Any], table: list[Entry], steps: int) -> dict[str, Any]:
    """A group as the engine reads it. ``table`` has the entries of all steps, or the only one."""
    schedules: list[tuple[float, ...]] = [(0.0, 0.0, 0.0)]
    if kind == "nadam":
        schedules = _nesterov(group, table, steps)
    elif kind == "asgd":
        schedules = _averaging(group, table, steps)
    decoupled = kind in ("adamw", "lion") or bool(group.get("decoupled_weight_decay", False))
    settings = {
        "weight_decay": float(group.get("weight_decay", 0.0)),
        "is_decoupled": decoupled,
        "epsilon": float(group.get("eps", 0.0)),
        "dampening": float(group.get("dampening", 0.0)),
        "nesterov": bool(group.get("nesterov", False)),
        "kept_squares": float(group.get("alpha", group.get("rho", 0.0))),
        "is_centered": bool(group.get("centered", False)),
        "rate_decay": float(group.get("lr_decay", 0.0)),
        "first_sum": float(group.get("initial_accumulator_value", 0.0)),
        "factors": [float(factor) for factor in group.get("etas", (0.0, 0.0))],
        "sizes": [float(size) for size in group.get("step_sizes", (0.0, 0.0))],
    }
    # Most groups have neither.
    settings |= {name: True for name in ("amsgrad", "maximize") if group.get(name)}
    return {
        "rates": _short([entry[0] for entry in table]),
        "betas": _short([entry[1] for entry in table]),
        "momenta": _short([entry[2] for entry in table]),
        "schedules": schedules,
        "settings": settings,
    }


def _short(table: list[Any]) -> list[Any]:
    """A value that never changes stands once."""
    return table if any(value != table[0] for value in table) else table[:1]


def _nesterov(group: dict[str, Any], table: list[Entry], steps: int) -> list[tuple[float, ...]]:
    """NAdam's momentum of each step and of the next one, and the product of all so far."""
    decay, product = float(group["momentum_decay"]), 1.0
    schedules: list[tuple[float, ...]] = []
    for step in range(1, steps + 1):
        beta = table[min(step, len(table)) - 1][1][0]
        now, then = (beta * (1.0 - 0.5 * 0.96 ** (at * decay)) for at in (step, step + 1))
        product *= now
        schedules.append((now, then, product))
    return schedules


def _averaging(group: dict[str, Any], table: list[Entry], steps: int) -> list[tuple[float, ...]]:
    """ASGD's rate of each step, the factor of its weights, and the share of them that their mean
    gets. One more than there are steps: PyTorch keeps those of the next one."""
    decay, power, start = (float(group[name]) for name in ("lambd", "alpha", "t0"))
    eta, share = _as_f32(table[0][0]), 1.0
    schedules: list[tuple[float, ...]] = []
    for step in range(1, steps + 2):
        schedules.append((eta, 1.0 - decay * eta, share))
        rate = table[min(step, len(table)) - 1][0]
        eta = _as_f32(rate / (1.0 + decay * rate * step) ** power)
        share = _as_f32(1.0 / max(1.0, step - start))
    return schedules


def _as_f32(value: float) -> float:
    """PyTorch keeps such numbers as tensors of f32."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])
