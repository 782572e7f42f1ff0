"""Samples by their places, read in the process or ahead of it."""

from __future__ import annotations

import random

import pytest
from conftest import needs_torch

pytestmark = needs_torch

ACCUMULATE, ROWS, SAMPLES = 2, 3, 40


def rows(step, shard, micro):
    first = ((step * 4 + shard) * ACCUMULATE + micro) * ROWS
    return [divmod(first + row, SAMPLES) for row in range(ROWS)]


class Noisy:
    """Each sample draws from the generators that augmentations use."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        import numpy
        import torch

        return index, float(torch.rand(())), random.random(), float(numpy.random.rand())


def batches(loaders):
    from everstep import data

    return data.Batches(data.SeededDataset(Noisy(), 7), rows, ACCUMULATE, loaders, lambda them: them)


def places(shards_of):
    for step, shards in shards_of:
        for shard in shards:
            for micro in range(ACCUMULATE):
                yield step, shard, micro


#: The first turn is a probe. Then the data shards of a worker change, and one step is done again.
CHURN = [(1, [0]), (1, [0, 1]), (2, [0, 1]), (3, [0, 1]), (3, [2]), (4, [0, 1, 2]), (5, [3]), (6, [3]), (2, [1])]


def test_batches_depend_on_their_place_alone():
    inline, ahead = batches(0), batches(2)
    for place in places(CHURN):
        wanted = inline.of(place)
        assert [row[0] for row in wanted] == [index for _, index in rows(*place)]
        assert ahead.of(place) == wanted, place


class Interrupting:
    """Batches of loading processes. A notebook interrupts each fifth read as its batch arrives."""

    def __init__(self, batches):
        self._batches, self._reads = batches, 0

    def __next__(self):
        found = next(self._batches)
        self._reads += 1
        if self._reads % 5 == 0:
            raise KeyboardInterrupt
        return found


def test_an_interrupted_read_gives_no_place_another_batch():
    inline, ahead = batches(0), batches(2)
    ahead._batches = Interrupting(ahead._batches)
    interrupted = 0
    for place in places(CHURN):
        while True:
            try:
                found = ahead.of(place)
                break
            except KeyboardInterrupt:
                interrupted += 1
        assert found == inline.of(place), place
    assert interrupted > 2


def test_loading_processes_outlive_an_interrupted_notebook():
    import os
    import signal

    from conftest import descendants

    before = descendants(os.getpid())
    ahead, inline = batches(2), batches(0)
    first, second, *_ = places(CHURN)
    # Each of the two has read a batch, and so has begun.
    for place in (first, second):
        assert ahead.of(place) == inline.of(place)
    for pid in descendants(os.getpid()) - before:
        os.kill(pid, signal.SIGINT)
    for _ in range(20):
        assert ahead.of(second) == inline.of(second)
        second = (second[0] + 1, *second[1:])


def test_what_is_read_ahead_is_what_comes_as_long_as_nothing_changes():
    from everstep import data

    plan = data.Plan(rows, ACCUMULATE)
    asked = iter(plan)
    in_vain = 0
    for place in places([(step, [1, 2]) for step in range(1, 9)]):
        plan.want(place)
        while True:
            next(asked)
            found = plan.asked.popleft()
            if found == place:
                break
            in_vain += 1
    assert in_vain <= 2 * ACCUMULATE, "the first step's data shards are a guess"


def test_an_epoch_and_a_sample_have_their_own_randomness():
    from everstep import data

    keyed = data.SeededDataset(Noisy(), 7)
    assert keyed[0, 3] == keyed[0, 3]
    assert keyed[0, 3] != keyed[1, 3]
    assert keyed[0, 3] != data.SeededDataset(Noisy(), 8)[0, 3]


def test_a_fingerprint_sees_the_length_and_the_samples():
    from everstep import data

    keyed = data.SeededDataset(Noisy(), 7)
    assert data.fingerprint(keyed, SAMPLES) == data.fingerprint(keyed, SAMPLES)
    assert data.fingerprint(keyed, SAMPLES) != data.fingerprint(keyed, SAMPLES - 1)
    assert data.fingerprint(keyed, SAMPLES) != data.fingerprint(data.SeededDataset(Noisy(), 8), SAMPLES)


def test_samples_without_numbers_are_refused():
    import torch

    from everstep import data

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter([1, 2])

    for stream in (Stream(), iter([1, 2])):
        with pytest.raises(TypeError, match="map-style"):
            data.check(stream)
