"""A trained model and its optimizer in PyTorch's own layout, to go on without Everstep."""

from __future__ import annotations

import copy
import os
import warnings
from pathlib import Path
from typing import Any

import torch

#: The names that optimizers of PyTorch have for their moments, by the names of their classes.
MOMENTS = {
    "AdamW": ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
    "Adam": ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
    "NAdam": ("exp_avg", "exp_avg_sq"),
    "RAdam": ("exp_avg", "exp_avg_sq"),
    "Adamax": ("exp_avg", "exp_inf"),
    "RMSprop": ("square_avg", "momentum_buffer", "grad_avg"),
    "Adagrad": ("sum",),
    "Adadelta": ("square_avg", "acc_delta"),
    "Rprop": ("prev", "step_size"),
    "SGD": ("momentum_buffer",),
    "ASGD": ("ax",),
    "Lion": ("exp_avg",),
}
#: The optimizers that count no steps.
UNCOUNTED = ("SGD", "Lion")


def vectors(found: list[tuple[str, bytes]]) -> list[torch.Tensor]:
    """The flat vectors of a checkpoint: the weights, and then the moments."""
    return [torch.frombuffer(bytearray(data), dtype=torch.float32) for _, data in found]


def optimizer_state(
    optimizer: torch.optim.Optimizer,
    rule: dict[str, Any],
    trained: list[tuple[str, torch.nn.Parameter, int]],
    moments: list[torch.Tensor],
    updates: int,
) -> dict[str, Any]:
    """The ``state_dict`` of an optimizer after so many updates. ``rule`` is the optimizer as plain
    data, and ``trained`` are the parameters with their places in the flat vectors."""
    kind = type(optimizer).__name__
    offsets = {id(parameter): offset for _, parameter, offset in trained}
    found: dict[str, Any] = copy.deepcopy(optimizer.state_dict())
    numbers = iter(range(sum(len(group["params"]) for group in optimizer.param_groups)))
    names = _names(optimizer, len(moments))
    for group, told in zip(optimizer.param_groups, rule["groups"]):
        has_moments = kind != "SGD" or group["momentum"] != 0.0
        for parameter, number in zip(group["params"], numbers):
            if id(parameter) not in offsets or not has_moments or updates == 0:
                continue
            begin = offsets[id(parameter)]
            parts = [moment[begin : begin + parameter.numel()] for moment in moments]
            shaped = [part.clone().view(parameter.shape) for part in parts]
            state: dict[str, Any] = dict(zip(names, shaped))
            if not group.get("amsgrad"):
                state.pop("max_exp_avg_sq", None)
            if kind not in UNCOUNTED:
                state["step"] = _scalar(float(updates))
            if kind == "NAdam":
                state["mu_product"] = _scalar(told["schedules"][updates - 1][2])
            if kind == "ASGD":
                eta, _, mu = told["schedules"][updates]
                state |= {"eta": _scalar(eta), "mu": _scalar(mu)}
            found["state"][number] = state
    return found


def _scalar(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float32)


def _names(optimizer: torch.optim.Optimizer, count: int) -> tuple[str, ...]:
    """The names of so many moments."""
    names = MOMENTS[type(optimizer).__name__]
    if type(optimizer).__name__ != "RMSprop":
        return names
    is_centered = any(group["centered"] for group in optimizer.param_groups)
    has_momentum = count > 1 + is_centered
    return names[:1] + names[1:2] * has_momentum + names[2:] * is_centered


def on_host(state: dict[str, Any]) -> dict[str, Any]:
    """A ``state_dict`` with its tensors in the host's memory: then a machine without a GPU reads
    it, too."""
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            state[name] = value.cpu()
    return state


class Advanced:
    """An optimizer and its schedule, inside a ``with``, as they are after so many steps."""

    def __init__(self, optimizer: torch.optim.Optimizer, schedule: Any, steps: int) -> None:
        self._groups = optimizer.param_groups
        self._schedule = schedule
        self._steps = steps

    def __enter__(self) -> None:
        own = lambda group: {name: it for name, it in group.items() if name != "params"}
        self._before = [own(group) for group in self._groups]
        if self._schedule is None:
            return
        self._state = copy.deepcopy(self._schedule.state_dict())
        with warnings.catch_warnings():
            # PyTorch warns of a schedule that moves before its optimizer, which never moves here.
            warnings.simplefilter("ignore")
            for _ in range(self._steps):
                self._schedule.step()

    def __exit__(self, *_: object) -> None:
        if self._schedule is not None:
            self._schedule.load_state_dict(self._state)
        for group, before in zip(self._groups, self._before):
            group.update(before)


def write(path: str | os.PathLike[str], content: dict[str, Any]) -> None:
    """Writes a file whole or not at all. Several processes may write the same file at once."""
    target = Path(path)
    partial = target.with_name(f".{target.name}-{os.getpid()}.partial")
    try:
        torch.save(content, partial)
        os.replace(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
