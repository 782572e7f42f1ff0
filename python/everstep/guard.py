"""What a script leaves as it is while its run trains.

The owners of the parameters make their next values, by settings that were read when the run was
made. A script that changes weights or settings itself would do so on one worker at a time, or
without any effect. It ends with an error that says what to do instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn.utils import clip_grad
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from everstep.optimizer import has_stepped
from everstep.parameters import Parameters

#: Wrappers of a model that exchange gradients themselves.
WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "FSDPModule")
#: What to do instead of a change of weights.
OWNERS = (
    "the owners of the parameters make their next values. Write a constraint into the forward pass, "
    "as torch.nn.utils.parametrize does; keep averages in a copy of the model; and use no "
    "nn.Embedding(max_norm=…)"
)
#: What to do instead of a change of settings.
SETTINGS = (
    "it was read when everstep.Run was made, and has no effect now. What moves with the steps is a "
    "schedule for everstep.Run, such as a LambdaLR, and nothing in the loop calls its step()"
)
#: What ``clip_grad_norm_`` and ``clip_grad_value_`` call with the gradients that they have found. A
#: script may hold those two themselves since before.
CLIPPING = ("_get_total_norm", "_group_tensors_by_device_and_dtype")


def model_inside(model: torch.nn.Module) -> torch.nn.Module:
    """The model as its script has made it, without the wrapper of ``torch.compile``, by which all
    names would have a prefix. Refuses the wrappers of other ways to train on several workers."""
    inside = getattr(model, "_orig_mod", model)
    inside = inside if isinstance(inside, torch.nn.Module) else model
    for kind in type(inside).__mro__:
        if kind.__name__ in WRAPPERS:
            raise TypeError(
                f"the model is in a {kind.__name__}, which has processes of its own reduce the "
                "gradients: give everstep.Run the model inside"
            )
    return inside


def check_optimizer(optimizer: Any) -> None:
    """Refuses an object that is no optimizer, such as a list of them."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer is a {type(optimizer).__name__}: give one object of torch.optim. Parameters "
            "that need other settings are groups of it"
        )


class _Facts(NamedTuple):
    """What shows most changes of a parameter, and is cheap to read."""

    #: PyTorch counts the changes in place.
    version: int
    address: int
    requires_grad: bool


class Guard:
    """Finds changes that a script must not make.

    Most are found at the end of a turn. PyTorch does not count those of ``parameter.data``: for
    these the guard reads one tensor in each turn, and all of them in the turns 1, 2, 4, 8 and so on.
    """

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, parameters: Parameters
    ) -> None:
        self._model, self._optimizer = model, optimizer
        self._named = _named(model)
        self._tensors = list(self._named.values())
        self._weights = parameters.weights
        self._seen = self._look()
        #: The type and the checksum of each frozen parameter.
        self._frozen = {
            name: (it.dtype, _checksum(it)) for name, it in self._named.items() if not it.requires_grad
        }
        self._settings = [_settings(group) for group in optimizer.param_groups]
        self._turns = 0
        #: The checksum of what the turn reads, as it was when the turn began.
        self._sum = _checksum(self._read())
        self._has_begun = self._is_in_loop = False
        self._hooks: list[RemovableHandle | _CallHook] = [
            optimizer.register_step_pre_hook(self._refuse_own_step),
            register_optimizer_step_pre_hook(self._refuse_other_step),
            *(_CallHook(name, self._refuse_clipping) for name in CLIPPING if hasattr(clip_grad, name)),
        ]

    def begin(self) -> None:
        """The loop begins. Since the run was made, the script has changed nothing."""
        if not self._has_begun:
            if has_stepped(self._optimizer):
                raise RuntimeError(
                    "the optimizer got moments after everstep.Run was made, and Everstep begins with "
                    "fresh ones. A run of Everstep goes on by `everstep resume`"
                )
            self._check()
        self._has_begun = self._is_in_loop = True

    def pause(self) -> None:
        """The loop is over, or was interrupted and may go on later."""
        self._is_in_loop = False

    def begin_turn(self) -> None:
        """A turn begins: the weights have their values of the step."""
        self._turns += 1
        self._sum = _checksum(self._read())

    def end_turn(self) -> None:
        """The script has come to the end of the loop's body."""
        if self._turns == 1:
            self._follow_casts()
        self._check()

    def end(self) -> None:
        """The run is over, and the script may do what it likes."""
        for hook in self._hooks:
            hook.remove()

    def _is_thorough(self) -> bool:
        return self._turns & (self._turns - 1) == 0

    def _read(self) -> torch.Tensor:
        """The tensor with the bits that the turn compares: all weights, or one parameter."""
        if self._is_thorough():
            return self._weights
        return self._tensors[self._turns % len(self._tensors)]

    def _look(self) -> dict[str, _Facts]:
        return {
            name: _Facts(it._version, it.data_ptr(), it.requires_grad)
            for name, it in self._named.items()
        }

    def _follow_casts(self) -> None:
        """Frozen layers of 8 and 4 bits cast their biases in the first forward pass, each worker in
        the same way."""
        now = self._look()
        for name, (dtype, _) in self._frozen.items():
            tensor = self._named[name]
            if tensor.dtype != dtype:
                self._seen[name] = now[name]
                self._frozen[name] = tensor.dtype, _checksum(tensor)

    def _check(self) -> None:
        seen = self._look()
        if seen != self._seen:
            self._refuse_change(seen)
        self._check_settings()
        if not torch.equal(self._sum, _checksum(self._read())):
            raise RuntimeError(f"the script has changed weights of the model: {OWNERS}")
        if not self._is_thorough():
            return
        now = _named(self._model)
        for name in {**self._named, **now}:
            if now.get(name) is not self._named.get(name):
                raise RuntimeError(
                    f"the parameter {name} is another one than when everstep.Run was made, and "
                    "would not be trained: change the model before"
                )
        for name, (_, before) in self._frozen.items():
            if not torch.equal(before, _checksum(self._named[name])):
                self._refuse_frozen(name)

    def _refuse_change(self, seen: dict[str, _Facts]) -> None:
        name = next(name for name in seen if seen[name] != self._seen[name])
        before, now = self._seen[name], seen[name]
        if now.requires_grad != before.requires_grad:
            word = "thawed" if now.requires_grad else "frozen"
            raise RuntimeError(
                f"the parameter {name} was {word} after everstep.Run was made: what is trained "
                "stays the same in a run. Call requires_grad_ before"
            )
        if not before.requires_grad:
            self._refuse_frozen(name)
        if now.address != before.address:
            raise RuntimeError(
                f"the parameter {name} has moved in memory since everstep.Run was made, as by "
                "model.to(…), flatten_parameters() or p.data = …, and would not be trained: do that "
                "before, or move the model by device="
            )
        if self._turns == 0:
            raise RuntimeError(
                f"the parameter {name} was changed after everstep.Run had read the initial weights: "
                "load weights before, and a run of Everstep goes on by `everstep resume`"
            )
        raise RuntimeError(f"the script has changed the parameter {name}: {OWNERS}")

    def _refuse_frozen(self, name: str) -> None:
        raise RuntimeError(
            f"the script has changed the frozen parameter {name}, and would do so on each worker in "
            "another way: make it a buffer of the model, and say in everstep.Run(…, buffers=) what "
            "becomes of it"
        )

    def _check_settings(self) -> None:
        groups = self._optimizer.param_groups
        if len(groups) != len(self._settings):
            raise RuntimeError("the optimizer had other groups when everstep.Run was made: add them before")
        for number, (group, settings) in enumerate(zip(groups, self._settings)):
            for key, before in settings.items():
                now = group.get(key)
                if now is not before and _plain(now) != before:
                    what = "other parameters" if key == "params" else f"{key}={now}"
                    raise RuntimeError(
                        f"the script has given group {number} of the optimizer {what}: {SETTINGS}"
                    )

    def _refuse_own_step(self, *_: Any) -> None:
        raise RuntimeError(
            "optimizer.step() was called in a run: the owners of the parameters make its steps, so "
            "leave it out"
        )

    def _refuse_other_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._is_in_loop and optimizer is not self._optimizer:
            raise RuntimeError(
                f"another optimizer, {type(optimizer).__name__}, was to make a step in the loop, which "
                "one worker alone would see. A run has one loss and one optimizer: put all that is "
                "trained into one model, with a group of the optimizer for each part"
            )

    def _refuse_clipping(self, gradients: Any) -> None:
        if isinstance(gradients, list) and len(gradients) == 1:
            gradients = gradients[0]
        if self._is_in_loop and isinstance(gradients, list) and not gradients:
            raise RuntimeError(
                "gradients were to be clipped, and there are none: run.backward(loss) has handed them "
                "over. Leave the call out, and write everstep.Run(…, clip_norm=1.0) in its place"
            )


class _CallHook:
    """Shows a check what a function of :mod:`torch.nn.utils.clip_grad` is called with."""

    def __init__(self, name: str, check: Callable[[Any], None]) -> None:
        self._name, self._function = name, getattr(clip_grad, name)

        @functools.wraps(self._function)
        def checked(first: Any, *rest: Any, **named: Any) -> Any:
            check(first)
            return self._function(first, *rest, **named)

        setattr(clip_grad, name, checked)

    def remove(self) -> None:
        setattr(clip_grad, self._name, self._function)


def _named(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """All parameters, tied ones by each of their names."""
    return dict(model.named_parameters(remove_duplicate=False))


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {key: _plain(value) for key, value in group.items()}


def _plain(value: Any) -> Any:
    """A setting, as it does not change with its object."""
    if isinstance(value, torch.Tensor):
        return float(value) if value.numel() == 1 else None
    if isinstance(value, list):
        # Parameters are compared as objects.
        return tuple(id(it) if isinstance(it, torch.Tensor) else it for it in value)
    return value


#: A checksum has so many sums, so that it also shows rows that have changed places.
SUMS = 127
#: Integers of so many bytes.
WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


def _checksum(tensor: torch.Tensor) -> torch.Tensor:
    """Numbers that follow from the bits of a tensor, on its device."""
    data = tensor.detach().reshape(-1).view(torch.uint8)
    # A tensor in the flat vector may begin in the middle of a longer word.
    width = next(width for width in WORDS if data.storage_offset() % width == 0)
    rows = data.numel() // (width * SUMS)
    rest = data[rows * width * SUMS :].long()
    words = data[: rows * width * SUMS].view(WORDS[width]).view(rows, SUMS)
    places = torch.arange(1, rest.numel() + 1, device=rest.device)
    return words.sum(0, dtype=torch.int64) + (rest * places).sum()
