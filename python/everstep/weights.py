"""The weights of samples: a step's loss is the mean over all their units, such as tokens.

The weights are known before the run, so every worker knows the sum of a step's weights without the
others. A micro-batch's mean loss counts by its share of that sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

#: Gives the epoch and the number of each sample of a micro-batch, by its place in the run.
Rows = Callable[[int, int, int], list[tuple[int, int]]]


class Weights:
    """A number for each sample, such as how many tokens of it have a target."""

    def __init__(self, weights: Sequence[float], samples: int) -> None:
        self._weights = [float(weight) for weight in weights]
        if len(self._weights) != samples:
            raise ValueError(f"there are {len(self._weights)} weights for {samples} samples")
        if any(not 0.0 < weight < math.inf for weight in self._weights):
            raise ValueError("a weight is not above 0, or not finite")
        self._step = 0
        self._sum = 0.0

    def text(self) -> str:
        """What a digest of the weights reads."""
        return repr(self._weights)

    def of(self, rows: Rows, place: tuple[int, int, int]) -> float:
        """The weight of a micro-batch."""
        return math.fsum(self._weights[index] for _, index in rows(*place))

    def factor(
        self, rows: Rows, place: tuple[int, int, int], shards: int, accumulate: int
    ) -> float:
        """What the mean over a step's micro-batches multiplies this one's mean loss by."""
        step = place[0]
        if step != self._step:
            turns = ((shard, micro) for shard in range(shards) for micro in range(accumulate))
            self._sum = math.fsum(self.of(rows, (step, *turn)) for turn in turns)
            self._step = step
        return self.of(rows, place) * shards * accumulate / self._sum
