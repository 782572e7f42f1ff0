"""What a ``torch.optim`` object says: its formula, its groups, and the rates of each step.

The object is read and never stepped. The owners of parameters apply the formula, in Rust.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch

#: The optimizers of PyTorch that Everstep can apply, by the names of their classes.
KINDS = {"AdamW": "adamw", "Adam": "adam", "SGD": "sgd", "Lion": "lion"}
#: Settings that change a formula into one that Everstep does not have.
UNSUPPORTED = ("amsgrad", "maximize", "differentiable")


def rule(
    optimizer: torch.optim.Optimizer,
    schedule: Any,
    parameters: list[tuple[str, torch.nn.Parameter, int]],
    steps: int,
) -> dict[str, Any]:
    """The optimizer as plain data. ``parameters`` have their places in the flat vector."""
    kind = KINDS.get(type(optimizer).__name__)
    if kind is None:
        raise TypeError(
            f"{type(optimizer).__name__} is none of the optimizers that Everstep can apply: use "
            "torch.optim.AdamW, Adam or SGD, or everstep.Lion"
        )
    groups = optimizer.param_groups
    owner = {id(p): number for number, group in enumerate(groups) for p in group["params"]}
    names = {id(p): name for name, p, _ in parameters}
    for group in groups:
        for setting in UNSUPPORTED:
            if group.get(setting):
                raise ValueError(f"the optimizer has {setting}=True, which Everstep cannot apply")
        if any(id(p) not in names for p in group["params"] if p.requires_grad):
            raise ValueError("the optimizer has a parameter that the model does not have")
    runs: list[tuple[int, int]] = []
    for name, parameter, offset in parameters:
        if id(parameter) not in owner:
            raise ValueError(
                f"the optimizer does not have the parameter {name}: add it to a group, or freeze "
                "it with requires_grad_(False)"
            )
        number = owner[id(parameter)]
        if not runs or runs[-1][1] != number:
            runs.append((offset, number))
    rates = _rates(optimizer, schedule, steps)
    return {
        "kind": kind,
        "groups": [_group(group, rates[number]) for number, group in enumerate(groups)],
        "runs": runs,
    }


def _group(group: dict[str, Any], rates: list[float]) -> dict[str, Any]:
    return {
        "rates": rates,
        "weight_decay": float(group.get("weight_decay", 0.0)),
        "betas": [float(beta) for beta in group.get("betas", (0.0, 0.0))],
        "epsilon": float(group.get("eps", 0.0)),
        "momentum": float(group.get("momentum", 0.0)),
        "dampening": float(group.get("dampening", 0.0)),
        "nesterov": bool(group.get("nesterov", False)),
    }


def _rates(optimizer: torch.optim.Optimizer, schedule: Any, steps: int) -> list[list[float]]:
    """The learning rate of each group at each step. A rate that never changes stands once."""
    groups = optimizer.param_groups
    if schedule is None:
        return [[float(group["lr"])] for group in groups]
    if isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise TypeError("ReduceLROnPlateau does not follow from the step: use another schedule")
    fixed = [_moving(group) for group in groups]
    before = copy.deepcopy(schedule.state_dict())
    rates: list[list[float]] = [[] for _ in groups]
    with warnings.catch_warnings():
        # PyTorch warns of a schedule that moves before its optimizer, which never moves here.
        warnings.simplefilter("ignore")
        first = [float(group["lr"]) for group in groups]
        for _ in range(steps):
            for own, group in zip(rates, groups):
                own.append(float(group["lr"]))
            if [_moving(group) for group in groups] != fixed:
                raise ValueError(
                    "the schedule changes betas or momentum, and Everstep applies schedules of "
                    "the learning rate: with OneCycleLR say cycle_momentum=False"
                )
            schedule.step()
    schedule.load_state_dict(before)
    for group, rate in zip(groups, first):
        group["lr"] = rate
    return [own if any(rate != own[0] for rate in own) else own[:1] for own in rates]


def _moving(group: dict[str, Any]) -> tuple[Any, Any]:
    return tuple(group.get("betas", ())), group.get("momentum")
