"""The weights of micro-batches: a step's loss is the mean over all their units, such as tokens.

A script states the weight of a micro-batch with its loss, or the weight of each sample before the
run. The engine adds the weights of a step up beside its gradients, and divides by their sum. So no
worker has to know the sum before the backward passes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


class Weights:
    """How much each micro-batch of a run counts."""

    def __init__(self, weights: Sequence[float] | None, samples: int) -> None:
        #: A number for each sample, such as how many tokens of it have a target.
        self._of_samples = None if weights is None else [float(weight) for weight in weights]
        #: Whether the script states weights in its loop. Not known before its first turn.
        self._is_stated: bool | None = None
        if self._of_samples is None:
            return
        if len(self._of_samples) != samples:
            raise ValueError(f"there are {len(self._of_samples)} weights for {samples} samples")
        if any(not 0.0 < weight < math.inf for weight in self._of_samples):
            raise ValueError("a weight is not above 0, or not finite")

    def text(self) -> str | None:
        """What a digest of the samples' weights reads. None if the samples have none."""
        return None if self._of_samples is None else repr(self._of_samples)

    def of(self, numbers: Sequence[int], stated: float | None) -> float:
        """The weight of the micro-batch with these samples, of which the script states this one."""
        if stated is not None and not 0.0 <= stated < math.inf:
            raise ValueError(f"weight={stated} is below 0, or not finite")
        if self._of_samples is not None:
            own = math.fsum(self._of_samples[number] for number in numbers)
            if stated is not None and not math.isclose(stated, own):
                raise ValueError(f"weight={stated}, and by the weights of everstep.Run it is {own}")
            return own
        if self._is_stated not in (None, stated is not None):
            raise ValueError(
                "run.backward was called with weight= in one turn and without it in another: the "
                "micro-batches of a step are weighed against each other, so give it in every turn"
            )
        self._is_stated = stated is not None
        return 1.0 if stated is None else float(stated)
