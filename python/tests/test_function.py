"""`everstep.train`, held-out samples, and losses that are means over the units of a step."""

from __future__ import annotations

import json
import math

import pytest
from conftest import needs_torch

pytestmark = needs_torch


def test_a_run_as_one_call_has_the_same_bits_on_1_and_3_workers(train, tmp_path):
    path = str(tmp_path / "model.safetensors")
    one, three = (train("function.py", "tokens", path, flags=("--workers", str(n))) for n in (1, 3))
    assert one.hash == three.hash
    assert one.report["loss"]["validation"] == three.report["loss"]["validation"]
    assert one.report["metric"] == three.report["metric"]
    assert 0.0 < one.report["metric"] <= 1.0
    assert one.report["loss"]["last"] < one.report["loss"]["first"]
    assert f"state {one.hash}" in one.out


def test_the_validation_is_that_of_a_plain_loop_over_the_samples(train):
    # Batches of one sample each, so that no mean over tokens mixes samples.
    ended = train("validated.py")
    assert ended.code == 0, ended.err
    plain = float(ended.out.split("plain ")[1].split()[0])
    assert ended.report["loss"]["validation"] == pytest.approx(plain, rel=1e-6)


def test_a_loop_evaluates_each_so_many_steps_and_trains_as_without(train):
    plain = train("validated.py")
    found = []
    for flags in ((), ("--workers", "3")):
        ended = train("validated.py", "4", flags=flags)
        assert ended.hash == plain.hash
        lines = map(json.loads, (ended.directory / "metrics.jsonl").read_text().splitlines())
        due = (line for line in lines if "validation_loss" in line)
        found.append({line["step"]: line["validation_loss"] for line in due})
    assert list(found[0]) == [4, 8] and found[0] == found[1]
    assert found[0][8] < found[0][4]


def test_what_a_loop_logs_is_a_mean_over_each_step(train):
    found = []
    for flags in ((), ("--workers", "3")):
        ended = train("validated.py", flags=flags)
        assert ended.code == 0, ended.err
        lines = map(json.loads, (ended.directory / "metrics.jsonl").read_text().splitlines())
        found.append([line["scalars"] for line in lines])
    assert found[0] == found[1] and len(found[0]) == 10
    epoch = sum(scalars["first"] for scalars in found[0][:4]) / 4
    assert epoch == pytest.approx(31.5 / 64, rel=1e-6), "each sample counts once"


def test_tokens_weigh_the_same_in_whichever_micro_batch_they_are(train, tmp_path):
    path = str(tmp_path / "model.safetensors")
    weighed, unweighed = (train("function.py", mode, path) for mode in ("tokens", "samples"))
    assert weighed.hash != unweighed.hash
    lines = (weighed.directory / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["loss"] == pytest.approx(math.log(16), rel=0.1)


@pytest.mark.parametrize("known", ["before", "at backward"])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_step_of_weighed_micro_batches_is_one_batch_of_all_tokens(
    train, tmp_path, known, workers
):
    path = tmp_path / "compared.json"
    ended = train("weighed.py", str(path), known, flags=("--workers", workers))
    assert ended.code == 0, ended.err + ended.logs()
    told = json.loads(path.read_text())
    first = json.loads((ended.directory / "metrics.jsonl").read_text().splitlines()[0])
    assert first["loss"] == pytest.approx(told["loss"], rel=1e-6)
    assert first["grad_norm"] == pytest.approx(told["norm"], rel=1e-5)
    assert told["weights"] < 1e-6, "the trained weights"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("weight", "weight=3.5, and by the weights of everstep.Run it is"),
        ("mixed", "in one turn and without it in another"),
        ("negative", "weight=-1.0 is below 0, or not finite"),
        ("never", "give a number of steps, at least 1"),
        ("few", "there are 2 weights for 64 samples"),
        ("unmarked", "mark one with @run.evaluate"),
        ("nothing", "give everstep.Run validation="),
        ("odd", 'a dict with "loss" and at most one more mean'),
    ],
)
def test_what_does_not_fit_is_refused_in_words(train, fault, words):
    ended = train("misfit.py", fault)
    assert ended.code == 1
    assert words in ended.err, ended.err
