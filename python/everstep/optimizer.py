"""What a ``torch.optim`` object says: its formula, its groups, and their settings at each step.

The object is read and never stepped. The owners of parameters apply the formula, in Rust.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau

from everstep.rule import Entry, group_of

#: The optimizers that Everstep can apply, by the names of their classes.
KINDS = {
    name: name.lower()
    for name in (
        "AdamW",
        "Adam",
        "Adamax",
        "NAdam",
        "RAdam",
        "RMSprop",
        "Adagrad",
        "Adadelta",
        "SGD",
        "ASGD",
        "Lion",
        "Rprop",
    )
}
#: Why others cannot be applied to a part of the parameters.
NOT_ELEMENTWISE = {
    "LBFGS": "it computes the loss several times in a step",
    "Muon": "it multiplies whole matrices, and parameter shards divide them",
    "Adafactor": "it needs rows and columns of whole matrices, and parameter shards divide them",
    "Shampoo": "it multiplies whole matrices, and parameter shards divide them",
    "SOAP": "it multiplies whole matrices, and parameter shards divide them",
    "LAMB": "it needs the norm of each tensor, and parameter shards divide tensors",
    "LARS": "it needs the norm of each tensor, and parameter shards divide tensors",
    "SparseAdam": "it needs sparse gradients, and here gradients are dense",
}
#: Settings that change a formula into one that Everstep does not have.
UNSUPPORTED = ("differentiable",)
#: A rate below this share of the greatest one trains nothing.
VANISHED = 1e-9
#: Settings of a group that a schedule may change.
MOVING = ("lr", "betas", "momentum")


def rule(
    optimizer: torch.optim.Optimizer,
    schedule: Any,
    parameters: list[tuple[str, torch.nn.Parameter, int]],
    steps: int,
) -> dict[str, Any]:
    """The optimizer as plain data. ``parameters`` have their places in the flat vector."""
    kind = _kind(optimizer)
    groups = optimizer.param_groups
    owner = {id(p): number for number, group in enumerate(groups) for p in group["params"]}
    names = {id(p): name for name, p, _ in parameters}
    for group in groups:
        for setting in UNSUPPORTED:
            if group.get(setting):
                raise ValueError(f"the optimizer has {setting}=True, which Everstep cannot apply")
        if any(id(p) not in names for p in group["params"] if p.requires_grad):
            raise ValueError("the optimizer has a parameter that the model does not have")
    if has_stepped(optimizer):
        raise ValueError(
            "the optimizer has made steps before, and Everstep begins with fresh moments: make a "
            "new optimizer. A run of Everstep goes on by `everstep resume`"
        )
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
    tables = _tables(optimizer, schedule, steps)
    return {
        "kind": kind,
        "groups": [group_of(kind, *each, steps) for each in zip(groups, tables)],
        "runs": runs,
    }


def has_stepped(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer has moments of its own. Some have a state from the beginning."""
    return any(float(state.get("step", 1.0)) > 0.0 for state in optimizer.state.values() if state)


def _kind(optimizer: torch.optim.Optimizer) -> str:
    """The formula. An optimizer of another library may share a name and have another formula."""
    kind = type(optimizer)
    is_known = kind.__module__.split(".")[0] in ("torch", "everstep")
    if is_known and kind.__name__ in KINDS:
        return KINDS[kind.__name__]
    why = NOT_ELEMENTWISE.get(kind.__name__, "its formula is not known")
    raise TypeError(
        f"{kind.__name__} is none of the optimizers that Everstep can apply: {why}. Use one of "
        "torch.optim: " + ", ".join(name for name in KINDS if name != "Lion") + ", or everstep.Lion"
    )


def _entry(group: dict[str, Any]) -> Entry:
    first, second = group.get("betas", (0.0, 0.0))
    return float(group["lr"]), (float(first), float(second)), float(group.get("momentum", 0.0))


def _tables(optimizer: torch.optim.Optimizer, schedule: Any, steps: int) -> list[list[Entry]]:
    """What a schedule makes of each group at each step."""
    groups = optimizer.param_groups
    if schedule is None:
        return [[_entry(group)] for group in groups]
    if isinstance(schedule, ReduceLROnPlateau):
        raise TypeError("ReduceLROnPlateau does not follow from the step: use another schedule")
    _check_is_of(schedule, optimizer)
    before = copy.deepcopy(schedule.state_dict())
    settings = [it for it in optimizer.defaults if it not in MOVING]
    names = (*MOVING, *settings)
    kept = [{it: copy.deepcopy(group[it]) for it in names if it in group} for group in groups]
    tables: list[list[Entry]] = [[] for _ in groups]
    moved: str | None = None
    with warnings.catch_warnings():
        # PyTorch warns of a schedule that moves before its optimizer, which never moves here.
        warnings.simplefilter("ignore")
        for step in range(steps):
            if step:
                schedule.step()
            for table, group, first in zip(tables, groups, kept):
                table.append(_entry(group))
                moved = moved or next((it for it in settings if group.get(it) != first.get(it)), None)
    schedule.load_state_dict(before)
    for group, values in zip(groups, kept):
        group.update(values)
    _warn_of_epochs(schedule, tables, steps)
    if moved:
        raise ValueError(
            f"the schedule changes {moved}, which stays as it is in a run: a schedule may change "
            "lr, betas and momentum"
        )
    return tables


def _warn_of_epochs(schedule: Any, tables: list[list[Entry]], steps: int) -> None:
    """Warns of a schedule that looks as if a loop over epochs were to step it."""
    rates = [abs(entry[0]) for entry in tables[0]]
    least = VANISHED * max(rates, default=0.0)
    vanished = sum(rate < least for rate in rates)
    period = getattr(schedule, "T_max", steps)
    if 2 * vanished > steps or period < steps and isinstance(schedule, CosineAnnealingLR):
        warnings.warn(
            f"the schedule {type(schedule).__name__} moves with each of the run's {steps} steps, and "
            "looks as if it counted epochs: multiply its numbers by the steps of an epoch",
            stacklevel=5,
        )


def _check_is_of(schedule: Any, optimizer: torch.optim.Optimizer) -> None:
    """Refuses the schedule of another optimizer. A wrapper may stand between the two."""
    other = getattr(schedule, "optimizer", None)
    if isinstance(other, torch.optim.Optimizer) and other is not optimizer:
        if getattr(other, "optimizer", None) is not optimizer:
            raise ValueError("the schedule is that of another optimizer: make it with this one")
