"""The optimizer Lion, as settings: the owners of parameters apply its formula."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


class Lion(torch.optim.Optimizer):
    """Lion (Chen et al., NeurIPS 2023, algorithm 2), with decoupled weight decay.

    An ``everstep.Run`` reads its groups. It makes no steps of its own.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        raise RuntimeError("Lion makes its steps inside an everstep.Run: pass it to one")
