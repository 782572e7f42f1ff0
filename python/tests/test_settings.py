"""What a script may state, and what is refused in words."""

from __future__ import annotations

import pytest
from conftest import needs_torch

pytestmark = needs_torch


def model():
    import torch

    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3))


def rule(optimizer, schedule=None, net=None, steps=10):
    from everstep import optimizer as rules
    from everstep.parameters import Parameters

    net = net or model()
    made = optimizer(net)
    return rules.rule(made, schedule and schedule(made), Parameters(net).trained, steps), made


def test_groups_are_ranges_of_the_flat_vector():
    import torch

    def groups(net):
        decay = [p for p in net.parameters() if p.dim() == 2]
        rest = [p for p in net.parameters() if p.dim() != 2]
        return torch.optim.AdamW([{"params": rest, "weight_decay": 0.0}, {"params": decay}], lr=0.5)

    found, _ = rule(groups)
    assert found["kind"] == "adamw"
    assert found["runs"] == [(0, 1), (12, 0)], "the matrix, and then three vectors"
    assert [group["settings"]["weight_decay"] for group in found["groups"]] == [0.0, 0.01]
    assert [group["rates"] for group in found["groups"]] == [[0.5], [0.5]]


def test_a_schedule_becomes_a_table_and_is_put_back():
    import torch

    sgd = lambda net: torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.5)
    cosine = lambda made: torch.optim.lr_scheduler.CosineAnnealingLR(made, 10)
    found, made = rule(sgd, cosine)
    rates = found["groups"][0]["rates"]
    assert len(rates) == 10 and rates[0] == 1.0 and rates[9] == pytest.approx(0.0244717, rel=1e-5)
    assert made.param_groups[0]["lr"] == 1.0


def test_a_schedule_of_momentum_is_a_table_too():
    import torch

    cycle = lambda made: torch.optim.lr_scheduler.OneCycleLR(made, 1.0, total_steps=10)
    for make, name in [
        (lambda net: torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.5), "momenta"),
        (lambda net: torch.optim.Adam(net.parameters(), betas=(0.5, 0.9)), "betas"),
    ]:
        found, made = rule(make, cycle)
        before = dict(made.param_groups[0])
        table = found["groups"][0][name]
        assert len(table) == 10 and min(table) < max(table)
        assert table[0] == (before["momentum"] if name == "momenta" else before["betas"])


def test_a_schedule_of_what_a_run_keeps_is_refused_in_words():
    import torch

    adamw = lambda net: torch.optim.AdamW(net.parameters(), weight_decay=0.1)

    class Decaying(torch.optim.lr_scheduler.LambdaLR):
        def step(self, *arguments):
            super().step(*arguments)
            for group in self.optimizer.param_groups:
                group["weight_decay"] *= 0.5

    made = []
    with pytest.raises(ValueError, match="the schedule changes weight_decay"):
        rule(lambda net: made.append(adamw(net)) or made[0], lambda it: Decaying(it, lambda _: 1.0))
    assert made[0].param_groups[0]["weight_decay"] == 0.05, "as it was: a schedule begins with a step"
    other = torch.optim.lr_scheduler.LambdaLR(adamw(model()), lambda step: 1.0 / (step + 1))
    with pytest.raises(ValueError, match="that of another optimizer"):
        rule(adamw, lambda _: other)


def test_nadam_has_its_own_table_of_momentum():
    import torch

    found, _ = rule(lambda net: torch.optim.NAdam(net.parameters()), steps=3)
    momenta = [0.9 * (1 - 0.5 * 0.96 ** (step * 4e-3)) for step in (1, 2, 3, 4)]
    schedules = found["groups"][0]["schedules"]
    assert [entry[0] for entry in schedules] == pytest.approx(momenta[:3])
    assert schedules[2][1:] == pytest.approx((momenta[3], momenta[0] * momenta[1] * momenta[2]))


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("AdamW", {}),
        ("NAdam", {}),
        ("RAdam", {}),
        ("Adamax", {}),
        ("RMSprop", {}),
        ("RMSprop", {"momentum": 0.9}),
        ("RMSprop", {"centered": True}),
        ("RMSprop", {"momentum": 0.9, "centered": True}),
        ("Adagrad", {}),
        ("Adadelta", {}),
        ("Rprop", {}),
        ("SGD", {"momentum": 0.9}),
        ("ASGD", {"t0": 1.0}),
    ],
)
def test_the_state_of_an_optimizer_is_exported_as_pytorch_has_it(kind, settings):
    import torch

    from everstep import export
    from everstep.parameters import Parameters

    net = model()
    told, made = rule(lambda net: getattr(torch.optim, kind)(net.parameters(), **settings), net=net)
    fresh = made.state_dict()
    trained = Parameters(net).trained
    for _ in range(3):
        made.zero_grad()
        net(torch.ones(2, 4)).square().sum().backward()
        made.step()
    expected = made.state_dict()["state"]
    names = [name for name in export.MOMENTS[kind] if name in expected[0]]
    moments = [torch.cat([it[name].flatten() for it in expected.values()]) for name in names]
    made.load_state_dict(fresh)
    found = export.optimizer_state(made, told, trained, moments, 3)["state"]
    assert found.keys() == expected.keys()
    for number, state in expected.items():
        assert found[number].keys() == state.keys()
        for name, value in state.items():
            torch.testing.assert_close(found[number][name], torch.as_tensor(value))


def test_what_cannot_be_applied_is_refused_in_words():
    import torch

    schedulers = torch.optim.lr_scheduler
    adamw = lambda net: torch.optim.AdamW(net.parameters())

    class AdamW(torch.optim.AdamW):
        """Another library's, of the same name."""

    def stepped(net):
        made = torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.5)
        net(torch.ones(2, 4)).sum().backward()
        made.step()
        return made

    Foreign = lambda net: AdamW(net.parameters())
    for optimizer, schedule, words in [
        (lambda net: torch.optim.Adam(net.parameters(), differentiable=True), None, "differentiable"),
        (lambda net: torch.optim.Adafactor(net.parameters()), None, "rows and columns"),
        (lambda net: torch.optim.LBFGS(net.parameters()), None, "several times in a step"),
        (Foreign, None, "its formula is not known"),
        (stepped, None, "the optimizer has made steps before"),
        (lambda net: torch.optim.SGD([net[0].weight], lr=1.0), None, "does not have the parameter"),
        (adamw, schedulers.ReduceLROnPlateau, "ReduceLROnPlateau"),
    ]:
        with pytest.raises((TypeError, ValueError), match=words):
            rule(optimizer, schedule)


def test_a_model_that_cannot_be_trained_here_is_refused_in_words():
    import torch

    from everstep.parameters import Parameters

    for change, words in [
        (lambda net: net.double(), "float64"),
        (lambda net: net.requires_grad_(False), "no parameter that is trained"),
    ]:
        net = model()
        change(net)
        with pytest.raises((TypeError, ValueError), match=words):
            Parameters(net)


def test_parameters_are_views_of_one_vector_and_ties_survive():
    import torch

    from everstep.parameters import Parameters

    net = model()
    net.append(torch.nn.Linear(3, 3))
    net[2].weight = torch.nn.Parameter(net[1].weight.detach().expand(3, 3).clone())
    net.append(torch.nn.Linear(3, 3, bias=False))
    net[3].weight = net[2].weight
    before = {name: it.clone() for name, it in net.state_dict().items()}
    flat = Parameters(net).flat
    assert all(torch.equal(it, before[name]) for name, it in net.state_dict().items())
    flat.fill_(2.0)
    assert all(bool((it == 2.0).all()) for it in net.parameters())
    assert net[3].weight is net[2].weight


def test_tensors_are_written_as_they_are_read(tmp_path):
    import torch

    from everstep import safetensors

    tensors = {"a": torch.randn(3, 2), "b": torch.tensor(1.5), "c": torch.empty(0)}
    safetensors.write(tmp_path / "x.safetensors", tensors)
    found = safetensors.read_f32(tmp_path / "x.safetensors")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    assert [it.name for it in tmp_path.iterdir()] == ["x.safetensors"]
    safetensors.write(tmp_path / "y.safetensors", {"d": torch.arange(3)})
    with pytest.raises(ValueError, match="I64"):
        safetensors.read_f32(tmp_path / "y.safetensors")


def test_a_micro_batch_weighs_what_its_samples_or_its_script_say():
    from everstep.weights import Weights

    weights = Weights([1, 2, 3, 4, 5, 6, 7, 8], 8)
    assert weights.of([2, 7], None) == weights.of([2, 7], 11) == 11.0
    with pytest.raises(ValueError, match="by the weights of everstep.Run it is 11"):
        weights.of([2, 7], 3)
    assert [Weights(None, 8).of([2, 7], stated) for stated in (None, 3, 0)] == [1.0, 3.0, 0.0]
    for odd in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="below 0, or not finite"):
            Weights(None, 8).of([2, 7], odd)
    mixed = Weights(None, 8)
    mixed.of([0], 2)
    with pytest.raises(ValueError, match="in one turn and without it in another"):
        mixed.of([1], None)
    for odd in ([1] * 7, [1] * 7 + [0], [1] * 7 + [float("nan")]):
        with pytest.raises(ValueError, match="weight"):
            Weights(odd, 8)


def test_what_a_loop_may_log():
    import torch

    from everstep.mirror import SharedMemory
    from everstep.scalars import Scalars

    scalars = Scalars(SharedMemory(0))
    scalars.log({"a": 1, "train/top-1": torch.tensor([0.5])})
    scalars.log({"a": 2.0})
    assert scalars.take() == [("a", 2.0), ("train/top-1", 0.5)] and scalars.take() == []
    for odd in ("", "a b", "é", "n" * 33):
        with pytest.raises(ValueError, match="cannot be a name"):
            scalars.log({odd: 1.0})
    with pytest.raises(ValueError, match="has 2 elements"):
        scalars.log({"b": torch.zeros(2)})
    with pytest.raises(ValueError, match="at most 16 names"):
        scalars.log({f"n{number}": 0.0 for number in range(17)})


def test_what_a_machine_lacks_is_no_fault_of_the_script():
    import errno

    import torch

    from everstep.process import is_of_place

    def caught(function):
        try:
            function()
        except BaseException as error:
            return error
        raise AssertionError("nothing was raised")

    def loader():
        try:
            raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")
        except RuntimeError as error:
            raise RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly") from error

    assert is_of_place(caught(lambda: torch.empty(1 << 60)))
    assert is_of_place(caught(loader))
    assert is_of_place(MemoryError()) and is_of_place(OSError(errno.ENOSPC, "full"))
    for error in (RuntimeError("sizes differ"), OSError(errno.ENOENT, "gone"), ValueError("no")):
        assert not is_of_place(error)


def test_what_an_evaluation_may_return():
    from everstep.evaluation import means

    assert means(0.5) == (0.5, None)
    assert means({"accuracy": 0.25, "loss": 2}) == (2.0, 0.25)
    for odd in ({"accuracy": 0.25}, {"loss": 1, "a": 1, "b": 2}):
        with pytest.raises(ValueError, match="at most one more mean"):
            means(odd)
