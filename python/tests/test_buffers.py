"""Buffers that training changes, and gradients on their way out."""

from __future__ import annotations

import ctypes

import pytest
from conftest import needs_torch

pytestmark = needs_torch


class Announced:
    """Reads what is announced to an engine, as the engine does: at its address."""

    def __init__(self, count):
        self.values = [0.0] * count

    def publish(self, offset, address, count):
        found = (ctypes.c_float * count).from_address(address)
        self.values[offset : offset + count] = list(found)


def norm():
    import torch

    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))


def statistics(model, buffers=None):
    from everstep.buffers import Statistics
    from everstep.parameters import Parameters

    found = Statistics(model, buffers)
    parameters = Parameters(model, found.count)
    found.live_in(parameters.memory)
    return found, parameters


def test_statistics_follow_the_parameters_in_the_flat_vector():
    model = norm()
    found, parameters = statistics(model)
    assert found.layout() == [
        ("1.running_mean", [3], "mean"),
        ("1.running_var", [3], "mean"),
        ("1.num_batches_tracked", [], "count"),
    ]
    assert parameters.flat.tolist()[-7:] == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0]
    parameters.flat[-7:] = 5.0
    found.load()
    assert all(bool((it == 5.0).all()) for it in model.buffers())


def test_a_data_shard_announces_its_share_of_the_mean_change():
    import torch

    model = norm()
    found, parameters = statistics(model)
    engine = Announced(parameters.flat.numel())
    before = torch.cat([model[1].running_mean, model[1].running_var])
    model(torch.randn(8, 2))
    after = torch.cat([model[1].running_mean, model[1].running_var])
    found.publish(engine, 1, 4, 1024.0)
    assert engine.values[-7:-1] == ((after - before) * 256.0).tolist()
    assert engine.values[-1] == 256.0
    found.load()
    assert int(model[1].num_batches_tracked) == 0, "each data shard begins with the step's values"


def test_a_turn_that_begins_again_has_the_statistics_with_which_it_began():
    import torch

    model = norm()
    found, parameters = statistics(model)
    parameters.flat[-7:] = 2.0
    found.begin(True, False)
    model(torch.randn(8, 2))
    between = model[1].running_mean.clone()
    found.begin(False, False)
    for _ in range(2):
        model(torch.randn(8, 2))
        found.begin(False, True)
        assert torch.equal(model[1].running_mean, between)
    found.begin(True, True)
    assert bool((model[1].running_mean == 2.0).all())


def test_the_first_data_shard_gives_the_value_where_the_script_says_so():
    import torch

    model = torch.nn.Linear(2, 2)
    model.register_buffer("queue", torch.tensor([3, 4]))
    model.register_buffer("cache", torch.zeros(2))
    found, parameters = statistics(model, {"queue": "first", "cache": "local"})
    assert found.layout() == [("queue", [2], "first")]
    model.queue += 1
    for shard, announced in [(0, [8.0, 10.0]), (1, [0.0, 0.0])]:
        engine = Announced(parameters.flat.numel())
        found.publish(engine, shard, 2, 2.0)
        assert engine.values[-2:] == announced
    model.queue = torch.tensor([1 << 24, 0])
    with pytest.raises(RuntimeError, match="queue counts beyond 16777216"):
        found.publish(engine, 0, 2, 1.0)


def test_unknown_buffers_and_policies_are_refused_in_words():
    for buffers, words in [({"1.mean": "mean"}, "no buffer 1.mean"), ({"1.running_var": "max"}, "'max'")]:
        with pytest.raises(ValueError, match=words):
            statistics(norm(), buffers)


def test_a_buffer_that_must_not_change_is_found_whenever_it_changes():
    import torch

    from everstep.buffers import FixedBuffers

    model = torch.nn.Linear(2, 2)
    model.register_buffer("scale", torch.ones(2))
    found, _ = statistics(model)
    fixed = FixedBuffers(model, found)
    model.scale.mul_(1.0)
    model.scale = model.scale.clone()
    fixed.check()
    model.scale[1] = 2.0
    with pytest.raises(RuntimeError, match="training changes the buffer scale"):
        fixed.check()


def test_a_data_shard_that_was_given_up_leaves_no_gradient():
    import torch

    from everstep.parameters import Gradients, Parameters

    model = norm()
    parameters = Parameters(model)
    engine = Announced(parameters.flat.numel())
    gradients = Gradients(engine, parameters)
    x = torch.randn(8, 2)

    def turn(is_first, is_last):
        gradients.begin(is_first, is_last)
        model(x).square().mean().backward()
        gradients.finish()

    turn(True, True)
    expected = list(engine.values)
    turn(True, False)  # and its second micro-batch never comes
    turn(True, True)
    assert engine.values == expected
