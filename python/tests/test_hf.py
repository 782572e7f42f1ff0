"""`everstep.hf.Trainer`: a step's loss is the mean over its tokens, however they lie in micro-batches."""

from __future__ import annotations

import importlib.util
import json

import pytest
from conftest import needs_torch

pytestmark = [
    needs_torch,
    pytest.mark.skipif(
        importlib.util.find_spec("accelerate") is None, reason="there is no package accelerate here"
    ),
]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_step_of_accumulated_micro_batches_is_one_batch_of_all_tokens(train, tmp_path, workers):
    path = tmp_path / "compared.json"
    ended = train("tokens.py", str(path), flags=("--workers", workers))
    assert ended.code == 0, ended.err + ended.logs()
    told = json.loads(path.read_text())
    first = json.loads((ended.directory / "metrics.jsonl").read_text().splitlines()[0])
    assert len(set(told["targets"])) > 2 and 0 in told["targets"]
    assert first["loss"] == pytest.approx(told["loss"], rel=1e-6)
    assert first["grad_norm"] == pytest.approx(told["norm"], rel=1e-5)
    assert told["weights"] < 1e-6, "the trained weights"


def test_the_precision_of_the_trainer_is_that_of_the_run(train, tmp_path):
    path = tmp_path / "compared.json"
    ended = train("tokens.py", str(path), "bf16")
    assert ended.code == 0, ended.err + ended.logs()
    assert 1e-6 < json.loads(path.read_text())["weights"] < 1e-2, "bf16 rounds"


def test_a_trainer_that_evaluates_has_its_losses_in_the_metrics(train, tmp_path):
    ended = train("tokens.py", str(tmp_path / "compared.json"), "evaluate")
    assert ended.code == 0, ended.err + ended.logs()
    first = json.loads((ended.directory / "metrics.jsonl").read_text().splitlines()[0])
    assert 0.0 < ended.report["loss"]["validation"] < first["validation_loss"]


def test_settings_that_would_change_the_model_are_refused_in_words(train, tmp_path):
    ended = train("tokens.py", str(tmp_path / "compared.json"), "noise")
    assert ended.code == 1
    assert "everstep.hf.Trainer takes no neftune_noise_alpha" in ended.err, ended.err
