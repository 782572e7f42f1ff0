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


def test_what_a_trainer_has_and_a_run_has_not_is_refused_in_words(tmp_path):
    import torch
    import transformers
    from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

    import everstep.hf

    class Sorted(everstep.hf.Trainer):
        def _get_train_sampler(self, *arguments):
            return None

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter([])

    model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=8, n_layer=1, n_embd=4, n_head=1))
    rows = [{"input_ids": torch.zeros(8, dtype=torch.long)}] * 8
    each = {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 1, "save_steps": 1}
    for kind, data, settings, words in [
        (everstep.hf.Trainer, Stream(), {}, "map-style"),
        (everstep.hf.Trainer, rows, {"load_best_model_at_end": True, **each}, "load_best_model_at_end"),
        (everstep.hf.Trainer, rows, {"train_sampling_strategy": "sequential"}, "train_sampling_strategy"),
        (Sorted, rows, {}, "Sorted._get_train_sampler would not be called"),
    ]:
        arguments = TrainingArguments(
            output_dir=str(tmp_path), max_steps=1, use_cpu=True, report_to=[], **settings
        )
        trainer = kind(model, arguments, train_dataset=data, eval_dataset=rows, data_shards=1)
        with pytest.raises((TypeError, ValueError), match=words):
            trainer.train()
    with pytest.warns(UserWarning, match="calls no callbacks"):
        trainer.add_callback(transformers.TrainerCallback())


def test_settings_that_would_change_the_model_are_refused_in_words(train, tmp_path):
    ended = train("tokens.py", str(tmp_path / "compared.json"), "noise")
    assert ended.code == 1
    assert "everstep.hf.Trainer takes no neftune_noise_alpha" in ended.err, ended.err
