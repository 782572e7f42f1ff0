"""The micro-batches of a run: read in the process, or ahead by processes of a ``DataLoader``."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from everstep import _everstep
from everstep.samples import Place, SampleKey, SeededDataset, add_to_digest, check, fingerprint

__all__ = ["Batches", "SeededDataset", "add_to_digest", "check", "default_collate", "fingerprint"]

#: What a loading process is asked for: a sample, and the place of its micro-batch.
Asked = tuple[Place, SampleKey]


class PlacedDataset(Dataset):
    """The samples of :class:`SeededDataset`, each with the place for which it is read."""

    def __init__(self, keyed: SeededDataset) -> None:
        self._keyed = keyed

    def __getitem__(self, asked: Asked) -> tuple[Place, Any]:
        place, row = asked
        return place, self._keyed[row]


class PlacedCollate:
    """Makes a micro-batch of such samples, with its place."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: list[tuple[Place, Any]]) -> tuple[Place, Any]:
        return samples[0][0], self._collate([sample for _, sample in samples])


def _begin_loader(_number: int) -> None:
    # A worker that is killed leaves no process behind. One that is interrupted, as a notebook may be,
    # goes on later.
    _everstep.die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Batches:
    """The micro-batches of a run, by their places."""

    def __init__(
        self,
        keyed: SeededDataset,
        rows: Callable[[int, int, int], list[SampleKey]],
        accumulate: int,
        loaders: int,
        collate: Callable[[list[Any]], Any] | None,
        device: torch.device | None = None,
    ) -> None:
        self._keyed = keyed
        self._rows = rows
        self._collate = collate or default_collate
        self._plan = Plan(rows, accumulate)
        self._batches: Iterator[Any] | None = None
        if loaders:
            # The processes are forked before the worker has threads and sockets.
            self._batches = iter(
                DataLoader(
                    PlacedDataset(keyed),
                    batch_sampler=self._plan,  # type: ignore[arg-type]
                    num_workers=loaders,
                    # A GPU reads such memory while the script goes on.
                    pin_memory=device is not None and device.type == "cuda",
                    collate_fn=PlacedCollate(self._collate),
                    persistent_workers=True,
                    multiprocessing_context="fork",
                    worker_init_fn=_begin_loader,
                )
            )

    def of(self, place: Place) -> Any:
        """Returns the micro-batch at a place. Leaves the random generators in no defined state."""
        if self._batches is None:
            return self._collate([self._keyed[row] for row in self._rows(*place)])
        while True:
            # Asks again for what an interrupted loop has lost.
            self._plan.want(place)
            found, batch = next(self._batches)
            found = tuple(found)  # a list, where the memory is pinned
            self._plan.came(found)
            if found == place:
                return batch


class Plan:
    """What the loading processes read ahead: an endless sequence of micro-batches.

    Steps resemble each other, so the plan goes on with the data shards of the last step. When the
    worker gets other data shards, what was asked for in vain is thrown away.
    """

    def __init__(self, rows: Callable[[int, int, int], list[SampleKey]], accumulate: int) -> None:
        self._rows = rows
        self._accumulate = accumulate
        #: The places that the loader was asked for, in order, until their micro-batches come.
        self.asked: deque[Place] = deque()
        #: The places to ask for next.
        self._queue: deque[Place] = deque()
        #: The last step of which all data shards are in the queue.
        self._planned = 0
        #: The step under way, and its data shards so far.
        self._step = 1
        self._now: list[int] = [0]
        #: The data shards of the step before.
        self._usual: list[int] = [0]
        self._go_to((1, 0, 0))

    def __iter__(self) -> Iterator[list[Asked]]:
        while True:
            if not self._queue:
                self._planned += 1
                self._append(self._planned, self._usual)
            place = self._queue.popleft()
            self.asked.append(place)
            yield [(place, row) for row in self._rows(*place)]

    def came(self, place: Place) -> None:
        """The micro-batch at a place has come, and none that was asked for before it will come."""
        while self.asked and self.asked.popleft() != place:
            pass

    def want(self, place: Place) -> None:
        """Takes note that the worker computes this micro-batch next."""
        step, shard, _ = place
        if step == self._step + 1:
            self._usual, self._now = self._now, []
        elif step != self._step:
            self._now = []
        self._step = step
        if shard not in self._now:
            self._now.append(shard)
        if place not in self.asked:
            self._go_to(place)

    def _go_to(self, place: Place) -> None:
        """Asks for a place next, and then for what probably follows it."""
        step, shard, micro = place
        self._queue.clear()
        self._queue.extend((step, shard, number) for number in range(micro, self._accumulate))
        later = [it for it in self._usual if it not in self._now and it != shard]
        self._append(step, later)
        self._planned = step

    def _append(self, step: int, shards: Sequence[int]) -> None:
        for shard in shards:
            self._queue.extend((step, shard, number) for number in range(self._accumulate))
