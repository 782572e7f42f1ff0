"""What a ``LightningModule`` and a ``LightningDataModule`` say of optimizer, schedule and data.

What Everstep cannot do as Lightning does it is refused here, before the run begins.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from everstep import data as samples

#: Hooks that take part in a step of the optimizer, which is Everstep's.
REFUSED = (
    "backward",
    "optimizer_step",
    "optimizer_zero_grad",
    "lr_scheduler_step",
    "configure_gradient_clipping",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_before_zero_grad",
)
#: Hooks that look on, and would see the batches of one process.
UNCALLED = (
    "configure_callbacks",
    "on_train_batch_end",
    "on_train_epoch_end",
    "on_validation_start",
    "on_validation_epoch_start",
    "on_validation_batch_start",
    "on_validation_batch_end",
    "on_validation_epoch_end",
    "on_validation_end",
    "on_save_checkpoint",
)


def check_module(module: Any) -> type:
    """Refuses a module that steps by itself. Returns the class ``LightningModule``."""
    base = _base(module, "LightningModule")
    if base is None:
        raise TypeError(f"{type(module).__name__} is no LightningModule: use everstep.Run or train")
    if not module.automatic_optimization:
        raise ValueError(
            "the module has automatic_optimization=False, and steps its optimizers itself: write "
            "the loop with everstep.Run"
        )
    refused = [name for name in REFUSED if _overrides(module, base, name)]
    if refused:
        raise ValueError(
            f"the module has the hook {refused[0]}: Everstep makes the steps, and nothing comes "
            "between a gradient and its owner. Clip by clip_norm=, freeze parameters before fit, "
            "or write the loop with everstep.Run"
        )
    uncalled = [name for name in UNCALLED if _overrides(module, base, name)]
    if uncalled:
        warnings.warn(
            f"everstep.lightning.fit does not call {', '.join(uncalled)}: a process computes a "
            "part of the batches, and some of them more than once. Means of what self.log gets "
            "are in metrics.jsonl",
            stacklevel=3,
        )
    return base


def is_module(value: Any) -> bool:
    """Whether this is a ``LightningModule``."""
    return _base(value, "LightningModule") is not None


def is_datamodule(value: Any) -> bool:
    """Whether this is a ``LightningDataModule``."""
    return _base(value, "LightningDataModule") is not None


def _base(value: Any, name: str) -> type | None:
    """The class of Lightning with this name, from which the value's class comes."""
    for kind in type(value).__mro__:
        package = kind.__module__.split(".")[0]
        if kind.__name__ == name and package in ("lightning", "pytorch_lightning"):
            return kind
    return None


def _overrides(owner: Any, base: type, name: str) -> bool:
    """Whether an owner has a hook of its own, in its class or in itself."""
    own = getattr(type(owner), name, None) is not getattr(base, name, None)
    return own or name in vars(owner)


def overridden(owners: list[Any], name: str) -> Any:
    """The hook of the first owner that has one of its own. None if all have Lightning's."""
    for owner in owners:
        base = _base(owner, "LightningDataModule") or _base(owner, "LightningModule")
        if base is not None and _overrides(owner, base, name):
            return getattr(owner, name)
    return None


def loader(owners: list[Any], given: Any, name: str) -> Any:
    """The ``DataLoader`` of training. Its samples and its batch size are the run's."""
    hook = overridden(owners, name)
    if given is None and hook is None:
        raise ValueError(f"there is no data: give a DataLoader, or a module with {name}")
    found = _loader(given if given is not None else hook())
    kind, sampler = type(found.sampler), found.sampler
    is_plain = kind is SequentialSampler or (
        kind is RandomSampler
        and not sampler.replacement
        and sampler.num_samples == len(found.dataset)
    )
    if not is_plain:
        raise TypeError(
            f"the DataLoader has a {kind.__name__}: Everstep gives each sample once an epoch, in "
            "an order of its own. Leave the sampler out, and repeat samples in the data set or "
            "weigh them by weights="
        )
    return found


def held_out(
    owners: list[Any], base: type, given: Any, training: DataLoader[Any]
) -> DataLoader[Any] | None:
    """The loader of held-out samples. None if the module does not validate."""
    if not _overrides(owners[-1], base, "validation_step"):
        return None
    hook = overridden(owners, "val_dataloader")
    found = given if given is not None or hook is None else hook()
    if found is None or (isinstance(found, (list, tuple)) and not found):
        return None
    found = _loader(found)
    if found.collate_fn != training.collate_fn:
        raise ValueError(
            "the held-out samples have another collate_fn than those of training: give both "
            "loaders one function, which may look at its samples"
        )
    return found


def _loader(found: Any) -> Any:
    if isinstance(found, (list, tuple)) and len(found) == 1:
        found = found[0]
    if not isinstance(found, DataLoader):
        raise TypeError(
            f"the data is a {type(found).__name__}, and no DataLoader of PyTorch: give one, over "
            "one data set. torch.utils.data.ConcatDataset joins several"
        )
    samples.check(found.dataset)
    if found.batch_size is None:
        raise TypeError("the DataLoader has a batch_sampler: give batch_size= in its place")
    return found


def configured(found: Any, epochs_per_step: tuple[int, int]) -> tuple[Any, Any]:
    """The optimizer and the schedule that ``configure_optimizers`` has returned. The schedule moves
    once a step. ``epochs_per_step`` is a fraction."""
    optimizers, schedules = _listed(found)
    if len(optimizers) != 1 or len(schedules) > 1:
        raise ValueError(
            f"configure_optimizers returned {len(optimizers)} optimizers and {len(schedules)} "
            "schedules: Everstep applies one optimizer, which may have several groups, and one "
            "schedule. torch.optim.lr_scheduler.SequentialLR and ChainedScheduler join schedules"
        )
    if not schedules:
        return optimizers[0], None
    stated = schedules[0] if isinstance(schedules[0], Mapping) else {"scheduler": schedules[0]}
    schedule, frequency = stated["scheduler"], stated.get("frequency", 1)
    if isinstance(schedule, ReduceLROnPlateau):
        return optimizers[0], schedule  # the run refuses it in words
    moves, steps = (1, 1) if stated.get("interval") == "step" else epochs_per_step
    return optimizers[0], PacedSchedule(schedule, moves, steps * frequency)


def _listed(found: Any) -> tuple[list[Any], list[Any]]:
    """The optimizers and schedules in one of the forms that Lightning takes."""
    if found is None:
        return [], []
    if isinstance(found, Mapping):
        schedule = found.get("lr_scheduler")
        return [found["optimizer"]], [] if schedule is None else [schedule]
    if not isinstance(found, (list, tuple)):
        return [found], []
    if len(found) == 2 and isinstance(found[0], (list, tuple)):
        schedules = found[1] if isinstance(found[1], (list, tuple)) else [found[1]]
        return list(found[0]), list(schedules)
    parts = [_listed(each) for each in found]
    return [it for part in parts for it in part[0]], [it for part in parts for it in part[1]]


class PacedSchedule:
    """A schedule that moves ``moves`` times in so many steps: once an epoch, or once a step."""

    def __init__(self, schedule: Any, moves: int, steps: int) -> None:
        self._schedule = schedule
        self._moves, self._steps = moves, steps
        self._at = 0

    def step(self) -> None:
        """A step is over."""
        before = self._at * self._moves // self._steps
        self._at += 1
        for _ in range(self._at * self._moves // self._steps - before):
            self._schedule.step()

    def state_dict(self) -> dict[str, Any]:
        """The state of the schedule, which its own ``load_state_dict`` takes, and the step."""
        return {**self._schedule.state_dict(), "everstep_steps": self._at}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to a state that ``state_dict`` has returned."""
        state = dict(state)
        self._at = state.pop("everstep_steps")
        self._schedule.load_state_dict(state)


def validation_means(returned: Any, logged: Mapping[str, Any]) -> dict[str, Any]:
    """The loss of a batch of held-out samples, and at most one more mean."""
    stated = returned.get("loss") if isinstance(returned, Mapping) else returned
    losses = [value for name, value in logged.items() if "loss" in name]
    loss = losses[0] if losses else stated
    if loss is None:
        raise ValueError(
            "validation_step logged nothing with loss in its name, and returned no loss: return "
            "the mean loss"
        )
    others = [(name, value) for name, value in logged.items() if "loss" not in name]
    return {"loss": loss, **dict(others[:1])}
