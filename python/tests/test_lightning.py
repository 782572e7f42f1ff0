"""`everstep.lightning.fit`, and what it reads of a module."""

from __future__ import annotations

import importlib.util
import json

import pytest
from conftest import needs_torch

pytestmark = needs_torch
needs_lightning = pytest.mark.skipif(
    importlib.util.find_spec("lightning") is None, reason="there is no package lightning here"
)


def lines(ended) -> list[dict]:
    told = (ended.directory / "metrics.jsonl").read_text().splitlines()
    keys = ("step", "loss", "scalars", "validation_loss", "metric")
    return [{key: it[key] for key in keys if key in it} for it in map(json.loads, told)]


@needs_lightning
def test_a_module_has_the_bits_of_a_loop_on_1_and_3_workers(train):
    loop = train("lit.py", "loop")
    expected = loop.hash
    for count in ("1", "3"):
        ended = train("lit.py", "fit", flags=("--workers", count))
        assert ended.hash == expected, f"{count} workers"
        assert lines(ended) == lines(loop)
        assert ended.report["loss"] == loop.report["loss"]
        assert ended.report["metric"] == loop.report["metric"]
    assert lines(loop)[3]["validation_loss"] > loop.report["loss"]["validation"]
    log = ended.directory / "logs" / "worker-1.log"
    assert "does not call on_train_epoch_end" in log.read_text()


@needs_lightning
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("nothing", "training_step returned NoneType, and no loss"),
        ("metric", "accuracy is a metric over all batches so far"),
    ],
)
def test_a_step_that_cannot_be_taken_is_refused_in_words(train, fault, words):
    ended = train("lit.py", fault)
    assert ended.code == 1
    assert words in ended.err, ended.err


@needs_lightning
def test_a_module_that_steps_by_itself_is_refused_in_words():
    import lightning
    import torch

    from everstep.lightning import TrainerFacts, _Steps
    from everstep.lightning_setup import check_module

    class Clipping(lightning.LightningModule):
        def configure_gradient_clipping(self, *_, **__):
            raise AssertionError

    manual = lightning.LightningModule()
    manual.automatic_optimization = False
    for module, words in [
        (Clipping(), "the module has the hook configure_gradient_clipping"),
        (manual, "automatic_optimization=False"),
        (torch.nn.Linear(1, 1), "Linear is no LightningModule"),
    ]:
        with pytest.raises((TypeError, ValueError), match=words):
            check_module(module)
    module = lightning.LightningModule()
    assert check_module(module) is lightning.LightningModule
    with pytest.raises(AttributeError, match="trainer.strategy: everstep.lightning.fit trains"):
        TrainerFacts(None, 1).strategy
    with pytest.raises(ValueError, match="reduce_fx='max'"):
        _Steps(module, [module], None)._log("worst", 1.0, reduce_fx="max")


@needs_lightning
def test_data_that_is_read_in_another_order_is_refused_in_words():
    import lightning
    import torch
    from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

    from everstep.lightning_setup import held_out, loader

    class Net(lightning.LightningModule):
        def validation_step(self, batch):
            raise AssertionError

    rows, net = [0, 1, 2, 3], Net()
    sampler = WeightedRandomSampler([1.0] * 4, 4)
    for data, words in [
        (DataLoader(rows, 2, sampler=sampler), "the DataLoader has a WeightedRandomSampler"),
        (DataLoader(rows, batch_sampler=[[0, 1]]), "the DataLoader has a batch_sampler"),
        ({"one": DataLoader(rows, 2)}, "the data is a dict"),
        (None, "there is no data: give a DataLoader, or a module with train_dataloader"),
    ]:
        with pytest.raises((TypeError, ValueError), match=words):
            loader([net], data, "train_dataloader")
    plain = DataLoader(rows, 2, shuffle=True)
    assert loader([net], [plain], "train_dataloader") is plain
    tensors = TensorDataset(torch.arange(4))
    given = lightning.LightningDataModule.from_datasets(train_dataset=tensors, batch_size=2)
    assert loader([given, net], None, "train_dataloader").batch_size == 2
    base = lightning.LightningModule
    assert held_out([net], base, plain, plain) is plain
    assert held_out([net], base, None, plain) is None
    with pytest.raises(ValueError, match="another collate_fn"):
        held_out([net], base, DataLoader(rows, 2, collate_fn=list), plain)


def optimizer_of(rate: float = 1.0):
    import torch

    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)


def test_each_form_of_an_optimizer_with_its_schedule_is_read():
    import torch

    from everstep.lightning_setup import configured

    one = optimizer_of()
    schedule = torch.optim.lr_scheduler.StepLR(one, 1, gamma=0.5)
    stated = {"scheduler": schedule, "interval": "step"}
    for form, has_schedule in [
        (one, False),
        ([one], False),
        (([one], []), False),
        ({"optimizer": one}, False),
        (([one], [schedule]), True),
        (([one], schedule), True),
        ({"optimizer": one, "lr_scheduler": stated}, True),
        ([{"optimizer": one, "lr_scheduler": schedule}], True),
    ]:
        found = configured(form, (1, 4))
        assert found[0] is one and (found[1] is not None) == has_schedule
    for odd in (None, [one, optimizer_of()], ([one], [schedule, schedule])):
        with pytest.raises(ValueError, match="Everstep applies one optimizer"):
            configured(odd, (1, 4))


@pytest.mark.parametrize(
    ("interval", "frequency", "rates"),
    [
        ("step", 1, [1, 2, 4, 8, 16, 32, 64, 128]),
        ("step", 3, [1, 1, 1, 2, 2, 2, 4, 4]),
        ("epoch", 1, [1, 1, 1, 2, 2, 4, 4, 4]),
        ("epoch", 2, [1, 1, 1, 1, 1, 2, 2, 2]),
    ],
)
def test_a_schedule_moves_with_steps_or_at_the_ends_of_epochs(interval, frequency, rates):
    import torch

    from everstep import optimizer as rules
    from everstep.lightning_setup import configured

    # A step has two fifths of the samples: epochs end within the 3rd, 5th, 8th and 10th step.
    one = optimizer_of()
    schedule = torch.optim.lr_scheduler.StepLR(one, 1, gamma=2.0)
    stated = {"scheduler": schedule, "interval": interval, "frequency": frequency}
    _, paced = configured({"optimizer": one, "lr_scheduler": stated}, (2, 5))
    net = torch.nn.ParameterList(one.param_groups[0]["params"])
    told = rules.rule(one, paced, [("0", net[0], 0)], len(rates))
    assert told["groups"][0]["rates"] == rates
    assert one.param_groups[0]["lr"] == 1.0, "it is put back"
    paced.step()
    paced.load_state_dict(paced.state_dict())
    schedule.load_state_dict(paced.state_dict())


def test_the_loss_of_held_out_samples_is_what_is_logged_or_returned():
    from everstep.lightning_setup import validation_means

    both = {"val_top1": 0.5, "val_loss": 2.0, "val_top5": 0.75}
    assert validation_means(None, both) == {"loss": 2.0, "val_top1": 0.5}
    assert validation_means(3.0, {}) == validation_means({"loss": 3.0}, {}) == {"loss": 3.0}
    assert validation_means("predictions", {"loss": 1.0}) == {"loss": 1.0}
    with pytest.raises(ValueError, match="returned no loss"):
        validation_means(None, {"val_top1": 0.5})
