"""The optimizers: settings that the engine reads. The owners of parameters apply the formulas, in
Rust. The names of the settings are those of Optax.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import jax
import numpy as np

from everstep.jax.tree import FlatTree
from everstep.rule import Entry, group_of

#: A rate, or what makes it of the number of steps before: also a schedule of Optax.
Rate = float | Callable[[Any], Any]
#: Settings of some parameters, by a pattern of their paths.
Groups = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Optimizer:
    """An elementwise optimizer. ``groups`` has other settings for some parameters:
    ``{"*bias": {"weight_decay": 0.0}}``. A parameter takes the first pattern that fits its path."""

    kind: ClassVar[str]
    learning_rate: Rate
    groups: Groups = field(default_factory=dict, kw_only=True)

    def rule(self, params: FlatTree, steps: int) -> dict[str, Any]:
        """The optimizer as plain data, for so many steps."""
        leaves = [leaf for leaf in params.leaves if leaf.size]
        names = [leaf.name for leaf in leaves]
        patterns = list(self.groups)
        for pattern in patterns:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
                raise ValueError(
                    f"the optimizer has a group {pattern!r}, and no parameter has such a path: "
                    f"{', '.join(names[:5])}{', …' if names[5:] else ''}"
                )
        runs: list[tuple[int, int]] = []
        for leaf in leaves:
            fits = (n for n, it in enumerate(patterns, 1) if fnmatch.fnmatchcase(leaf.name, it))
            number = next(fits, 0)
            if not runs or runs[-1][1] != number:
                runs.append((leaf.offset, number))
        groups = [self._group(settings, steps) for settings in ({}, *self.groups.values())]
        return {"kind": self.kind, "groups": groups, "runs": runs}

    def _group(self, others: Mapping[str, Any], steps: int) -> dict[str, Any]:
        own = {it.name: getattr(self, it.name) for it in fields(self) if it.name != "groups"}
        for name in others:
            if name not in own:
                near = difflib.get_close_matches(name, own, 1, 0.5)
                hint = f", perhaps {near[0]}" if near else ""
                raise ValueError(
                    f"{type(self).__name__} has no setting {name}{hint}. It has {', '.join(own)}"
                )
        settings = {**own, **others}
        betas = float(settings.get("b1", 0.0)), float(settings.get("b2", 0.0))
        momentum = float(settings.get("momentum", 0.0))
        table: list[Entry] = [
            (rate, betas, momentum) for rate in _rates(settings["learning_rate"], steps)
        ]
        return group_of(self.kind, settings, table, steps)


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019)."""

    kind = "adamw"
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 1e-4


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba, ICLR 2015), without weight decay."""

    kind = "adam"
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent, with momentum or without. Weight decay is a part of the
    gradient."""

    kind = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0


@dataclass(frozen=True)
class Lion(Optimizer):
    """Lion (Chen et al., NeurIPS 2023, algorithm 2), with decoupled weight decay."""

    kind = "lion"
    b1: float = 0.9
    b2: float = 0.99
    weight_decay: float = 1e-3


def check(optimizer: Any) -> Optimizer:
    """Refuses what is no optimizer of Everstep."""
    if isinstance(optimizer, Optimizer):
        return optimizer
    names = "everstep.jax.AdamW, Adam, SGD or Lion"
    if hasattr(optimizer, "init") and hasattr(optimizer, "update"):
        raise TypeError(
            "the optimizer is a GradientTransformation of Optax. The owners of parameters apply the "
            "formula in Rust, and cannot read it from a pair of functions. Give "
            f"{names}: their settings have the names of Optax. learning_rate= takes a schedule of "
            "Optax, and clip_norm= of the run is in the place of optax.clip_by_global_norm"
        )
    raise TypeError(f"the optimizer is a {type(optimizer).__name__}: give {names}")


def _rates(rate: Rate, steps: int) -> list[float]:
    """The rate of each step, or the only one."""
    if not callable(rate):
        return [float(rate)]
    if isinstance(rate(0), jax.Array):
        # One program for all steps, in place of some operations for each.
        found = jax.jit(jax.vmap(rate))(np.arange(steps, dtype=np.int32))
        return [float(value) for value in np.asarray(found)]
    return [float(rate(step)) for step in range(steps)]
