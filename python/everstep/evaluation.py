"""The held-out samples of a run, and the script's own function that evaluates them.

The workers deal the samples out among each other by data shards, and add the means in the order of
the data shards. So the result has the same bits for any number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everstep import seeds

#: The script's function: from a batch to its mean loss, or to a dict with ``"loss"`` and at most
#: one more mean. In JAX the parameters come before the batch.
Function = Callable[..., Any]
#: How a framework calls the script's function with a batch, and with a seed for random numbers.
Compute = Callable[[Function, Any, int], Any]


class Evaluator:
    """Evaluates held-out samples in the way of the script's framework."""

    def __init__(
        self, dataset: Any, seed: int, collate: Callable[[list[Any]], Any], compute: Compute
    ) -> None:
        self._dataset = dataset
        self._seed = seed
        self._collate, self._compute = collate, compute
        self.function: Function | None = None
        #: Each so many steps the samples are evaluated, and after the last one. 0: then alone.
        self.every = 0

    def mark(self, function: Function, every: int | None) -> None:
        """The run evaluates by this function."""
        if every is not None and every < 1:
            raise ValueError(f"every={every}: give a number of steps, at least 1")
        self.function, self.every = function, every or 0

    def check(self) -> None:
        """Whether there is a function for the held-out samples, and samples for the function."""
        if self._dataset is not None and self.function is None:
            raise RuntimeError(
                "validation= was given, and no function that evaluates it: mark one with "
                "@run.evaluate before the loop"
            )
        if self._dataset is None and self.function is not None:
            raise RuntimeError("@run.evaluate has no samples: give everstep.Run validation=")

    def of(self, numbers: Sequence[int]) -> tuple[float, float | None]:
        """The mean loss over these samples, and the mean of the script's own metric, if any."""
        assert self.function is not None, "the run has checked that"
        batch = self._collate([self._sample(number) for number in numbers])
        key = seeds.key(seeds.EVALUATION, self._seed, numbers[0])
        return means(self._compute(self.function, batch, key))

    def _sample(self, number: int) -> Any:
        seeds.seed_generators(seeds.key(seeds.HELD_OUT, self._seed, number))
        return self._dataset[number]


def means(found: Any) -> tuple[float, float | None]:
    """Reads what the script's function has returned."""
    if not isinstance(found, Mapping):
        found = {"loss": found}
    if "loss" not in found or len(found) > 2:
        raise ValueError(
            f"the function of @run.evaluate returned {list(found)}: it returns the mean loss, or a "
            'dict with "loss" and at most one more mean'
        )
    others = [float(value) for name, value in found.items() if name != "loss"]
    return float(found["loss"]), others[0] if others else None
