"""What a script may not change while its run trains."""

from __future__ import annotations

import pytest
from conftest import needs_torch

pytestmark = needs_torch


class Training:
    """A model with a frozen layer and tied weights, its optimizer, and the guard of their run."""

    def __init__(self) -> None:
        import torch

        from everstep.guard import Guard
        from everstep.parameters import Parameters

        torch.manual_seed(1)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
        self.model[2].weight = self.model[1].weight
        self.model[0].requires_grad_(False)
        trained = [it for it in self.model.parameters() if it.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=0.1)
        self.parameters = Parameters(self.model)
        self.guard = Guard(self.model, self.optimizer, self.parameters)

    def turns(self, count: int) -> None:
        """Turns in which the engine writes other weights before the script computes."""
        for _ in range(count):
            self.parameters.flat.data.mul_(0.5)
            self.guard.begin_turn()
            self.model(self.model[0].weight).sum().backward()
            self.guard.end_turn()


@pytest.fixture
def training():
    made = Training()
    yield made
    made.guard.end()


def assign(training):
    training.model.load_state_dict(dict(training.model.state_dict()), assign=True)


def replace(training):
    import torch

    training.model[1] = torch.nn.Linear(4, 4)


def shuffle_rows(training):
    weight = training.model[1].weight
    weight.data.copy_(weight.detach()[[1, 0, 2, 3]])


def add(training):
    import torch

    training.model.append(torch.nn.Linear(4, 4))


def step_of_a_schedule(training):
    import torch

    torch.optim.lr_scheduler.LambdaLR(training.optimizer, lambda step: 0.5)


def add_group(training):
    import torch

    training.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})


def change_in_place(training):
    import torch

    with torch.no_grad():
        training.model[1].bias.add_(1.0)


def train_by_another_optimizer(training):
    import torch

    other = torch.nn.Linear(1, 1)
    torch.optim.SGD(other.parameters(), lr=0.1).step()


#: Changes, and what the errors about them say.
CHANGES = [
    (assign, "0.weight"),
    (replace, "is another one than when"),
    (add, "3.weight is another one than when"),
    (lambda it: it.model.double(), "0.weight"),
    (lambda it: it.model[1].bias.data.add_(1.0), "weights of the model"),
    (change_in_place, "parameter 1.bias"),
    (shuffle_rows, "weights of the model"),
    (lambda it: it.model[0].bias.data.add_(1.0), "frozen parameter 0.bias"),
    (lambda it: it.model[1].bias.requires_grad_(False), "1.bias was frozen"),
    (lambda it: it.model[0].bias.requires_grad_(), "0.bias was thawed"),
    (lambda it: it.optimizer.param_groups[0].update(lr=0.2), "lr=0.2"),
    (lambda it: it.optimizer.param_groups[0].update(betas=(0.5, 0.9)), "betas="),
    (lambda it: it.optimizer.param_groups[0]["params"].pop(), "other parameters"),
    (step_of_a_schedule, "lr=0.05"),
    (add_group, "other groups"),
]


@pytest.mark.parametrize(("change", "words"), CHANGES)
def test_a_change_between_the_run_and_its_loop_is_refused(training, change, words):
    change(training)
    with pytest.raises(RuntimeError, match=words):
        training.guard.begin()


@pytest.mark.parametrize(("change", "words"), CHANGES)
def test_a_change_in_the_loop_is_refused(training, change, words):
    training.guard.begin()
    training.turns(3)
    training.guard.begin_turn()
    change(training)
    with pytest.raises(RuntimeError, match=words):
        training.guard.end_turn()


def test_what_changes_nothing_is_let_be(training):
    import torch

    training.optimizer.load_state_dict(training.optimizer.state_dict())
    training.guard.begin()
    training.turns(9)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        training.model.eval()(torch.ones(2, 4))
    training.optimizer.param_groups[0]["name"] = "mine"
    training.turns(8)


def test_a_change_of_data_now_and_then_is_found_sooner_or_later(training):
    training.guard.begin()
    training.turns(100)
    with pytest.raises(RuntimeError, match="weights of the model"):
        for _ in range(12):
            training.guard.begin_turn()
            training.model[1].bias.data.add_(1.0)
            training.guard.end_turn()


@pytest.mark.parametrize("begin", range(4))
def test_a_checksum_shows_a_change_wherever_a_tensor_begins(begin):
    import torch

    from everstep.guard import _checksum

    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.complex64):
        flat = torch.ones(2_000, dtype=dtype)
        for count in (0, 1, 3, 1_500):
            part = flat[begin : begin + count]
            before = _checksum(part)
            assert torch.equal(before, _checksum(part))
            if count:
                part[count // 2] = 0
                assert not torch.equal(before, _checksum(part)), (dtype, count)
    scalar = torch.tensor(1.0)
    assert torch.equal(_checksum(scalar), _checksum(scalar.clone()))


def test_frozen_layers_may_be_cast_in_the_first_turn(training):
    import torch

    training.guard.begin()
    training.guard.begin_turn()
    training.model[0].bias.data = training.model[0].bias.data.bfloat16()
    training.guard.end_turn()
    for _ in range(8):
        training.guard.begin_turn()
        training.guard.end_turn()
    training.guard.begin_turn()
    training.model[0].bias.data = training.model[0].bias.data.to(torch.float16)
    with pytest.raises(RuntimeError, match="frozen parameter 0.bias"):
        training.guard.end_turn()


def test_only_the_loop_forbids_the_steps_of_other_optimizers(training):
    train_by_another_optimizer(training)
    training.guard.begin()
    with pytest.raises(RuntimeError, match="another optimizer, SGD"):
        train_by_another_optimizer(training)
    training.guard.pause()
    train_by_another_optimizer(training)
    with pytest.raises(RuntimeError, match="make its steps"):
        training.optimizer.step()
    training.guard.end()
    train_by_another_optimizer(training)


def test_clipping_is_refused_where_it_would_find_no_gradient(training):
    import torch
    from torch.nn.utils import clip_grad_norm_, clip_grad_value_

    clip_grad_norm_(training.model.parameters(), 1.0)
    training.guard.begin()
    for call in (clip_grad_norm_, clip_grad_value_):
        with pytest.raises(RuntimeError, match="clip_norm=1.0"):
            call(training.model.parameters(), 1.0)
    other = torch.nn.Linear(1, 1)
    other(torch.ones(1)).sum().backward()
    clip_grad_norm_(other.parameters(), 0.5)
    clip_grad_value_(other.parameters(), 0.01)
    assert max(it.grad.abs().max() for it in other.parameters()) <= 0.01
    training.guard.pause()
    clip_grad_norm_(training.model.parameters(), 1.0)
    training.guard.begin()
    training.guard.end()
    clip_grad_norm_(training.model.parameters(), 1.0)


def test_an_optimizer_that_gets_moments_after_the_run_was_made_is_refused():
    made = Training()
    made.guard.end()
    made.model[1].bias.grad = made.model[1].bias.detach().clone()
    before = made.optimizer.state_dict()
    made.optimizer.step()
    moments = made.optimizer.state_dict()
    made = Training()
    made.optimizer.load_state_dict(before)
    made.optimizer.load_state_dict(moments)
    with pytest.raises(RuntimeError, match="got moments"):
        made.guard.begin()
    made.guard.end()


def test_wrappers_of_other_ways_to_train_are_refused_and_a_compiled_model_is_not():
    import torch

    from everstep.guard import model_inside

    model = torch.nn.Linear(1, 1)
    assert model_inside(model) is model
    assert model_inside(torch.compile(model)) is model
    with pytest.raises(TypeError, match="give everstep.Run the model inside"):
        model_inside(torch.nn.DataParallel(model))


def test_a_process_of_torchrun_is_told_of_the_launcher(monkeypatch):
    from everstep.process import check_launcher

    check_launcher()
    monkeypatch.setenv("WORLD_SIZE", "4")
    check_launcher()  # a variable of that name is no launcher
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(RuntimeError, match="everstep launch --workers 4"):
        check_launcher()


def test_a_loader_is_refused_by_the_names_of_what_is_in_it():
    import torch

    from everstep import data

    loader = torch.utils.data.DataLoader([1, 2, 3])
    with pytest.raises(TypeError, match="loader.dataset"):
        data.check(loader)


def test_memory_is_of_f32_whatever_the_default_is():
    import torch

    torch.set_default_dtype(torch.bfloat16)
    try:
        from everstep import mirror

        assert mirror.SharedMemory(3).flat.dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(("steps", "warns"), [(20, False), (2000, True)])
def test_a_schedule_that_counts_epochs_is_warned_of(steps, warns):
    import warnings

    import torch

    from everstep import optimizer as rules
    from everstep.parameters import Parameters

    for schedule in (
        lambda it: torch.optim.lr_scheduler.CosineAnnealingLR(it, 20),
        lambda it: torch.optim.lr_scheduler.StepLR(it, 30),
    ):
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            rules.rule(optimizer, schedule(optimizer), Parameters(model).trained, steps)
        assert any("counted epochs" in str(it.message) for it in found) == warns
