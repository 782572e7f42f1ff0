"""Checkpoints of scripts: a run goes on after the end of all of its processes, with the same bits."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys

import pytest
from conftest import SCRIPTS, needs_torch
from test_optimizer import read

pytestmark = needs_torch

STEPS = "300"


def everstep(*arguments: str, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "everstep", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def checkpoints(directory) -> list[dict]:
    told = everstep("checkpoint", "ls", "--dir", str(directory), "--json")
    return json.loads(told.stdout) if told.returncode == 0 else []


@pytest.fixture(scope="module")
def known():
    """The state hash of the run, as it was first found."""
    return {}


def undisturbed(train, known: dict) -> str:
    if "hash" not in known:
        known["hash"] = train("faulty.py", "slow", STEPS).hash
    return known["hash"]


@pytest.fixture
def hold(tmp_path):
    """The file with the step at which a script of the kind "held" waits."""
    return tmp_path / "hold"


def test_a_run_that_was_killed_twice_goes_on_with_other_workers(launch, train, known, hold):
    expected = undisturbed(train, known)
    hold.write_text("90")
    flags = ("--workers", "2", "--checkpoint-every", "20")
    first = launch("faulty.py", "held", STEPS, str(hold), flags=flags)
    first.await_event("checkpoint", 20)
    first.kill_all()
    hold.write_text("190")
    second = launch.resume(first, "--workers", "3")
    second.await_event("checkpoint", 100)
    second.kill_all()
    hold.write_text(STEPS)
    third = launch.resume(first, "--workers", "1")
    ended = third.end()
    assert ended.hash == expected
    lines = [json.loads(line) for line in (ended.directory / "metrics.jsonl").read_text().split("\n")[:-1]]
    assert [line["step"] for line in lines] == list(range(1, int(STEPS) + 1))
    assert len({line["generation"] for line in lines}) >= 3, "it did not begin again"


@pytest.mark.parametrize("script", ["gpt.py", "cnn.py"])
def test_moments_and_running_statistics_come_back(launch, train, script, tmp_path):
    gate = tmp_path / "gate"
    arguments = ("--gate", str(gate)) if script == "gpt.py" else (f"--gate={gate}",)
    gate.touch()
    expected = train(script, *arguments).hash
    gate.unlink()
    first = launch(script, *arguments, flags=("--workers", "2", "--checkpoint-every", "8"))
    first.await_event("checkpoint")
    first.await_steps(12)
    first.kill_all()
    gate.touch()
    second = launch.resume(first, "--workers", "3")
    ended = second.end()
    assert ended.hash == expected
    back = [event["to"] for event in second.events() if event["event"] == "rollback"]
    assert back and back[-1] >= 8, "it went on from a checkpoint"
    assert (ended.report["samples_lost"], ended.report["samples_repeated"]) == (0, 0)


def test_a_run_without_checkpoints_begins_again_with_its_script(launch, train, known):
    expected = undisturbed(train, known)
    first = launch("faulty.py", "slow", STEPS)
    first.await_steps(30)
    first.kill_all()
    assert launch.resume(first).end().hash == expected


def test_ctrl_c_saves_what_is_done_and_says_how_to_go_on(launch, train, known, hold):
    expected = undisturbed(train, known)
    hold.write_text("60")
    flags = ("--workers", "2", "--checkpoint-every", "1000")
    first = launch("faulty.py", "held", STEPS, str(hold), flags=flags)
    first.await_steps(40)
    first.process.send_signal(signal.SIGINT)
    first.await_event("draining")
    hold.write_text(STEPS)
    ended = first.end()
    assert ended.code == 130
    assert "goes on from the checkpoint of step" in ended.err, ended.err
    assert checkpoints(first.directory)[-1]["step"] >= 40
    assert launch.resume(first).end().hash == expected


def test_the_store_alone_and_the_script_are_enough(launch, train, known, tmp_path, hold):
    expected = undisturbed(train, known)
    hold.write_text("90")
    script = ("faulty.py", "held", STEPS, str(hold))
    first = launch(*script, flags=("--checkpoint-every", "20"))
    first.await_event("checkpoint")
    first.kill_all()
    hold.write_text(STEPS)
    store = tmp_path / "store"
    shutil.move(first.directory / "checkpoints", store)
    shutil.rmtree(first.directory)
    directory = tmp_path / "again"
    flags = ("--dir", str(directory), "--workers", "2")
    told = everstep("resume", str(store), *flags)
    assert told.returncode == 2 and "-- SCRIPT ARGS" in told.stderr, told.stderr
    told = everstep("resume", str(store), *flags, "--", str(SCRIPTS / script[0]), *script[1:])
    assert told.returncode == 0, told.stderr
    assert json.loads((directory / "report.json").read_text())["state_hash"] == expected


def test_the_steps_after_a_checkpoint_are_trained_again_and_compared(train, tmp_path):
    script = [str(SCRIPTS / "faulty.py"), "plain", "40"]
    # A busy disk may skip every checkpoint but the first one and that of the last step.
    ended = train("faulty.py", *script[1:], flags=("--workers", "2", "--checkpoint-every", "20"))
    assert ended.code == 0, ended.err
    replay = ("checkpoint", "verify", "--json", "--step", "20", "--replay", "20", "--dir")
    told = everstep(*replay, str(ended.directory))
    expected = {"checkpoint": 20, "steps": 20, "state_hashes": 1, "differences": []}
    assert told.returncode == 0 and json.loads(told.stdout) == expected, told.stderr
    store = str(ended.directory / "checkpoints")
    told = everstep(*replay, store)
    assert told.returncode == 2 and "-- SCRIPT ARGS" in told.stderr, told.stderr
    told = everstep(*replay, store, "--", *script)
    assert told.returncode == 0 and json.loads(told.stdout) == expected, told.stderr
    lines = (ended.directory / "metrics.jsonl").read_text().splitlines()
    line = json.loads(lines[24])
    lines[24] = json.dumps({**line, "loss": line["loss"] + 1.0})
    (ended.directory / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    told = everstep(*replay, str(ended.directory))
    assert told.returncode == 1, told.stderr
    assert [it["step"] for it in json.loads(told.stdout)["differences"]] == [25]


def test_a_script_that_has_changed_is_refused_by_the_key(launch):
    first = launch("faulty.py", "slow", STEPS, flags=("--checkpoint-every", "20"))
    first.await_steps(30)
    first.kill_all()
    told = everstep("resume", str(first.directory), "--", str(SCRIPTS / "faulty.py"), "slow", "299")
    assert told.returncode == 1 and "run.steps is 299, and it was 300" in told.stderr, told.stderr
    ended = launch.resume(first).end()
    assert ended.code == 0, "the run is as it was"


def test_checkpoints_are_listed_verified_and_exported(train, tmp_path):
    import torch

    from everstep import safetensors

    saved = tmp_path / "saved.safetensors"
    config = tmp_path / "run.toml"
    # A busy disk may skip every checkpoint but the first one and that of the last step.
    config.write_text("[checkpoint]\nevery = 6\n")
    ended = train("gpt.py", "--steps", "12", "--save", str(saved), flags=("--config", str(config)))
    listed = checkpoints(ended.directory)
    assert [it["step"] for it in listed] == [6, 12]
    assert all(it["complete"] for it in listed)
    assert listed[-1]["state_hash"] == ended.hash
    told = everstep("checkpoint", "verify", "--dir", str(ended.directory))
    assert told.returncode == 0, told.stderr
    folder = tmp_path / "exported"
    told = everstep("checkpoint", "export", str(folder), "--dir", str(ended.directory))
    assert told.returncode == 0, told.stderr
    exported = safetensors.read_f32(folder / "model.safetensors")
    whole = safetensors.read_f32(saved)
    assert exported.keys() <= whole.keys()
    assert all(torch.equal(exported[name], whole[name]) for name in exported)


@pytest.mark.parametrize("kind", ["adamw", "nesterov", "nadam", "rmsprop"])
def test_plain_pytorch_goes_on_from_an_export(train, tmp_path, kind):
    import torch

    whole, exported, plain = (tmp_path / name for name in ("whole.safetensors", "it.pt", "plain.pt"))
    ended = train("export.py", kind, "25", str(whole), "-", flags=("--workers", "2"))
    assert ended.code == 0, ended.err
    flags = ("--workers", "2", "--checkpoint-every", "50")
    ended = train("export.py", kind, "20", str(exported), str(plain), flags=flags)
    assert ended.code == 0, ended.err + ended.logs()
    found, expected = torch.load(plain), read(whole)
    assert found.keys() == expected.keys()
    for name in found:
        # The plain loop's running statistics are those of its last rows, and no weight depends on
        # them.
        if name.endswith(("weight", "bias")):
            bound = {"rtol": 0.0, "atol": 0.0} if kind in ("adamw", "nesterov") else {}
            torch.testing.assert_close(found[name], expected[name], **bound)


def test_an_export_without_checkpoints_says_what_it_lacks(train, tmp_path):
    ended = train("export.py", "adamw", "3", str(tmp_path / "it.pt"), str(tmp_path / "plain.pt"))
    assert ended.code == 1 and "--checkpoint-every" in ended.err, ended.err


@pytest.mark.parametrize(
    ("fault", "hang_after", "what"),
    [("hang", "2s", "computes a micro-batch"), ("stuck", "1s", "reads the samples of a micro-batch")],
)
def test_a_hanging_script_is_replaced_and_its_stacks_are_in_the_log(
    launch, train, known, tmp_path, fault, hang_after, what
):
    expected = undisturbed(train, known)
    config = tmp_path / "run.toml"
    config.write_text(f'[redundancy]\nhang_after = "{hang_after}"\n')
    flags = ("--workers", "2", "--respawn", "--config", str(config))
    launched = launch("faulty.py", fault, STEPS, str(tmp_path / "once"), flags=flags)
    ended = launched.end()
    assert ended.hash == expected
    logs = ended.logs()
    assert f"main thread hangs: it {what}" in logs and "Fatal Python error: Aborted" in logs, logs
    assert "faulty.py" in logs.split("Fatal Python error: Aborted")[1], logs


def test_a_script_without_memory_is_replaced_and_the_others_go_on(launch, train, known, tmp_path):
    expected = undisturbed(train, known)
    flags = ("--workers", "2", "--respawn")
    ended = launch("faulty.py", "memory", STEPS, str(tmp_path / "once"), flags=flags).end()
    assert ended.hash == expected
    assert ended.report["respawned"] == 1
    assert "DefaultCPUAllocator" in ended.logs()
