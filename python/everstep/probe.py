"""The first turns of a process: the same micro-batch again and again.

The engine compares what comes of them. A model that does not repeat cannot be trained to the same
bits twice, so its script ends here, with the cause in words if PyTorch knows it.
"""

from __future__ import annotations

import re
import warnings
from typing import Any

import torch

from everstep import _everstep
from everstep.device import name_of_gpu
from everstep.process import kind_of_cpu
from everstep.samples import FirstBatch

#: How PyTorch warns of an operation.
_NAMED = re.compile(r"(\S+) does not have a deterministic implementation")


class Probe:
    """Looks at the first turns of a process."""

    def __init__(self, engine: _everstep.Engine, is_scaled: bool) -> None:
        self._engine = engine
        self._is_scaled = is_scaled
        self._first = FirstBatch()
        self._warnings: warnings.catch_warnings[Any] | None = None
        self._caught: Any = None
        self._was_deterministic = False

    def begin(self, batch: Any, is_again: bool) -> None:
        """A turn begins with this micro-batch, or begins again."""
        if is_again:
            return
        if self._engine.is_diagnosing():
            self._was_deterministic = torch.are_deterministic_algorithms_enabled()
            torch.use_deterministic_algorithms(True, warn_only=True)
            self._warnings = warnings.catch_warnings(record=True)
            self._caught = self._warnings.__enter__()
            warnings.simplefilter("always")
        self._first.check(batch)

    def check(self, loss: torch.Tensor) -> None:
        """The forward pass of a turn has made this loss."""
        if self._first.passes == 1 and not self._is_scaled and _has_f16(loss):
            raise RuntimeError(
                "the loop computes in torch.float16, whose small gradients vanish: give "
                "everstep.Run(..., loss_scaling=True), which is in the place of a GradScaler, or "
                "take torch.bfloat16"
            )

    def end(self) -> None:
        """The gradients of a turn are there. Raises the cause if the first turns differ."""
        if self._warnings is None:
            return
        self._warnings.__exit__(None, None, None)
        torch.use_deterministic_algorithms(self._was_deterministic)
        named = {found[1] for it in self._caught if (found := _NAMED.match(str(it.message)))}
        cause = (
            "PyTorch has no deterministic implementation of " + ", ".join(sorted(named))
            if named
            else "PyTorch names no operation as the cause, so look for a state that the model "
            "keeps from one forward pass to the next, and for random numbers that are not of "
            "torch, random or numpy.random"
        )
        raise RuntimeError(
            "this model does not repeat here: equal passes over the first micro-batch have unequal "
            f"gradients, so no other worker and no other run could have the same bits. {cause}"
        )


def _has_f16(loss: torch.Tensor) -> bool:
    """Whether a gradient on the way from the loss to the parameters is of float16."""
    open_, seen = [loss.grad_fn], set()
    while open_:
        node = open_.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if any(it.dtype == torch.float16 for it in getattr(node, "_input_metadata", ())):
            return True
        open_.extend(following for following, _ in node.next_functions)
    return False


def processor(device: torch.device) -> str:
    """What computes: the kind of GPU, or the kind of CPU and the instructions that PyTorch uses
    there. Workers that differ in it may have other bits."""
    if device.type == "cuda":
        return name_of_gpu(device)
    return f"cpu {torch.backends.cpu.get_cpu_capability()}, {kind_of_cpu()}"
