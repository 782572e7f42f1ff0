"""Runs of scripts: the same bits for any number of workers, and whatever happens to them."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import LAUNCH_TIMEOUT, SCRIPTS, descendants, is_alive, needs_torch, peak_mb

pytestmark = needs_torch


def workers(count: int, *more: str) -> tuple[str, ...]:
    return ("--workers", str(count), *more)


@pytest.fixture(scope="session")
def gpt_hash():
    """The state hashes of gpt.py by its arguments, as its first runs found them."""
    return {}


def the_gpt_hash(train, known: dict, *arguments: str) -> str:
    if arguments not in known:
        known[arguments] = train("gpt.py", *arguments).hash
    return known[arguments]


def test_a_gpt_has_the_same_bits_on_1_2_and_4_workers(train, gpt_hash):
    expected = the_gpt_hash(train, gpt_hash)
    for count in (2, 4):
        ended = train("gpt.py", flags=workers(count))
        assert ended.hash == expected, f"{count} workers"
        assert ended.out.count(f"hash {expected}") == count, "each process has the report"
        assert (ended.report["samples_lost"], ended.report["samples_repeated"]) == (0, 0)
        assert ended.report["loss"]["last"] < ended.report["loss"]["first"]


def test_loading_processes_change_no_bit(train, gpt_hash):
    ended = train("gpt.py", "--loaders", "2", flags=workers(2))
    assert ended.hash == the_gpt_hash(train, gpt_hash)


def test_another_seed_has_other_bits(train, gpt_hash):
    assert train("gpt.py", "--seed", "2").hash != the_gpt_hash(train, gpt_hash)


#: How many steps a run of gpt.py has that lasts until workers have come and gone.
LONG = ("--steps", "200")


@pytest.mark.parametrize(
    "script",
    [
        ("gpt.py", *LONG),
        ("gpt.py", *LONG, "--bf16", "--loaders", "1"),
        ("cnn.py", "--epochs=30"),
    ],
    ids=["f32", "bf16", "running statistics"],
)
def test_ten_kills_a_join_and_a_drain_change_no_bit(launch, train, script, tmp_path):
    expected = train(*script).hash
    chance = random.Random(1)
    fast = tmp_path / "fast"
    script = (*script, f"--slow={fast}")
    launched = launch(*script, flags=workers(3, "--respawn"))
    joiner = join(launched, tmp_path / "joiner", script)
    launched.await_event("joined")
    killed = 0
    while killed < 10:
        there = launched.workers()
        # Of two members, so that one has what the other had. Never the one that joined by hand.
        victims = [pid for pid in there if pid in descendants(launched.process.pid)]
        if len(there) > 1 and victims:
            time.sleep(chance.random() * 0.2)
            os.kill(chance.choice(victims), signal.SIGKILL)
            killed += 1
        time.sleep(0.5)
    joiner.send_signal(signal.SIGTERM)
    _, told = joiner.communicate(timeout=LAUNCH_TIMEOUT)
    assert joiner.returncode == 143, told
    fast.touch()
    ended = launched.end()
    assert ended.hash == expected
    assert ended.report["respawned"] >= 10
    assert {"joined", "draining", "left"} <= {event["event"] for event in launched.events()}
    assert (ended.report["samples_lost"], ended.report["samples_repeated"]) == (0, 0)


@pytest.fixture(scope="session")
def cnn_hash():
    """The state hash of cnn.py, as its first run found it."""
    return {}


def test_running_statistics_have_the_same_bits_on_1_2_and_4_workers(train, cnn_hash, tmp_path):
    files = set()
    for count in (1, 2, 4):
        path = tmp_path / f"model-{count}.safetensors"
        found = train("cnn.py", str(path), flags=workers(count)).hash
        assert found == cnn_hash.setdefault("hash", found), f"{count} workers"
        files.add(path.read_bytes())
    assert len(files) == 1 and b"norm1.running_var" in files.pop()


@pytest.mark.parametrize(
    "features",
    [
        ("bf16", "checkpoint", "tied", "unused", "onecycle"),
        ("fp16", "reentrant", "frozen", "lora"),
        ("compile",),
    ],
    ids=" ".join,
)
def test_what_models_use_changes_no_bit(train, features):
    """The guide says what an unused parameter comes to, and so does the log."""
    if "compile" in features and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("there is no C++ compiler here, which torch.compile needs")
    ended = [train("features.py", *features, flags=workers(count)) for count in (1, 2)]
    assert len({it.hash for it in ended}) == 1
    assert ("unused" in features) == ("it counts as zero" in ended[0].logs()), ended[0].logs()


def test_a_worker_with_other_threads_is_refused_in_words(launch, tmp_path):
    gate = tmp_path / "gate"
    script = ("gpt.py", "--steps", "40", "--gate", str(gate))
    launched = launch(*script)
    joiner = join(launched, tmp_path / "joiner", script, "--threads", "2", registers=False)
    until = time.monotonic() + LAUNCH_TIMEOUT
    while "its number of threads" not in (launched.directory / "events.jsonl").read_text():
        assert time.monotonic() < until, joiner.poll()
        time.sleep(0.05)
    joiner.kill()
    joiner.communicate()
    gate.touch()
    assert launched.end().report["bitwise"] is True


def test_a_worker_with_other_instructions_is_named_as_the_reason_for_other_bits(launch, tmp_path):
    import torch

    usual = torch.backends.cpu.get_cpu_capability()
    if usual not in ("AVX2", "AVX512"):
        pytest.skip("PyTorch has one kind of instructions for this CPU")
    gate = tmp_path / "gate"
    script = ("cnn.py", f"--gate={gate}")
    launched = launch(*script)
    # As `--isa` does it.
    few = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}
    joiner = join(launched, tmp_path / "joiner", script, variables=few)
    gate.touch()
    ended = launched.end()
    joiner.communicate(timeout=LAUNCH_TIMEOUT)
    assert ended.code == 0, ended.err
    assert ended.report["bitwise"] is False
    reason = ended.report["bitwise_reason"]
    assert f"cpu {usual}" in reason and "cpu DEFAULT" in reason, reason


def test_threads_and_instructions_that_a_launch_states_hold_for_all_workers(train):
    import torch

    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("this CPU has no AVX2")
    flags = ("--threads", "2", "--isa", "avx2")
    ended = [train("gpt.py", "--steps", "6", flags=workers(count, *flags)) for count in (1, 2)]
    assert len({it.hash for it in ended}) == 1
    assert [it.out.count("cpu AVX2 with 2 threads") for it in ended] == [1, 2]


def test_what_needs_no_torch_takes_little_memory(launch):
    launched = launch("faulty.py", "none", "100000")
    launched.await_steps(20)
    started = descendants(launched.process.pid)
    words = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in started}
    [coordinator] = [pid for pid in started if b"coordinator" in words[pid]]
    assert peak_mb(coordinator) < 40, peak_mb(coordinator)
    assert peak_mb(launched.process.pid) < 60, peak_mb(launched.process.pid)


def test_a_saved_model_is_that_of_a_state_dict(train, tmp_path):
    path = tmp_path / "model.safetensors"
    ended = train("gpt.py", "--steps", "2", "--save", str(path), flags=workers(2))
    assert ended.code == 0, ended.err
    names = path.read_bytes()[8:4000]
    assert b'"head.weight"' in names and b'"tokens.weight"' in names
    assert (ended.directory / "model.safetensors").exists()


def test_weights_stay_as_they_are_until_the_next_turn(train):
    for count in (1, 2):
        ended = train("faulty.py", "still", "60", flags=workers(count))
        assert ended.code == 0, ended.err


def test_an_exception_ends_the_run_and_is_printed_once(train):
    ended = train("faulty.py", "exception", flags=workers(2))
    assert ended.code == 1
    assert ended.err.count("Traceback (most recent call last)") == 1, ended.err
    assert ended.err.count("ValueError: the loss looks odd") == 1, ended.err
    assert "faulty.py" in ended.err and "worker-" in ended.err


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("break", "before its run was over"),
        ("exit", "before its run was over"),
        ("backward", "write run.backward(loss) in place of loss.backward()"),
        ("step", "the owners of the parameters make its steps"),
        ("rate", "given group 0 of the optimizer lr=0.001"),
        ("clamp", "has changed the parameter 0.weight"),
        ("loaded", "load weights before"),
        ("several", "optimizer is a list"),
        ("forgotten", "did not call run.backward"),
        ("sample", "sample 63 is damaged"),
        ("buffer", 'buffers={"1.calls": "mean"}'),
        ("synchronous", "SyncBatchNorm"),
        ("adafactor", "rows and columns of whole matrices"),
        ("chance", "no deterministic implementation of put_"),
        ("noise", "the data set does not repeat here"),
        ("half", "loss_scaling=True"),
    ],
)
def test_a_script_that_errs_fails_its_run_in_words(train, fault, words):
    ended = train("faulty.py", fault)
    assert ended.code == 1
    assert words in ended.err, ended.err


def test_scripts_that_state_different_runs_are_refused_by_the_key(train):
    ended = train("faulty.py", "unseeded", flags=workers(2))
    assert ended.code == 1
    assert "run.model.init.digest" in ended.err and "manual_seed" in ended.err, ended.err


def test_processes_with_different_data_are_refused_by_the_key(train):
    ended = train("faulty.py", "data", flags=workers(2))
    assert ended.code == 1 and "run.model.options.data is" in ended.err, ended.err


def test_a_script_that_fails_after_its_run_fails_the_launch(train):
    ended = train("faulty.py", "late", "3")
    assert ended.code == 1
    assert "RuntimeError: too late" in ended.err
    assert "worker-1: after the loop" in ended.out


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_launch_leaves_no_process(launch, sent, code):
    launched = launch("faulty.py", "none", "100000", flags=workers(2))
    launched.await_steps(3)
    started = descendants(launched.process.pid)
    assert len(started) >= 3, "two workers and a coordinator"
    began = time.monotonic()
    launched.process.send_signal(sent)
    ended = launched.end()
    assert ended.code == code
    assert time.monotonic() - began < 60
    assert "the run stopped after step" in ended.err
    assert not [pid for pid in started if is_alive(pid)]


def test_a_killed_launch_leaves_no_process(launch):
    launched = launch("gpt.py", "--steps", "10000", "--loaders", "1", flags=workers(2))
    launched.await_steps(2)
    started = descendants(launched.process.pid)
    launched.process.kill()
    launched.process.wait()
    until = time.monotonic() + 60
    while any(map(is_alive, started)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not [pid for pid in started if is_alive(pid)]


def join(
    launched, folder, script, *flags, registers=True, variables=None
) -> subprocess.Popen[str]:
    """Starts a worker by hand, with its files elsewhere, and waits until it has registered."""
    launched.await_steps(15)  # steps are settled a little later
    home = launched.directory
    coordinators = json.loads((home / "cluster.json").read_text())["coordinators"]
    command = [sys.executable, "-m", "everstep", "worker"]
    command += ["--coordinators", coordinators[0]["address"]]
    command += ["--join", f"@{home / 'join.token'}", "--dir", str(folder), *flags]
    command += ["--", str(SCRIPTS / script[0]), *script[1:]]
    pipe = subprocess.PIPE
    environment = {**os.environ, **(variables or {})}
    joiner = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)
    events = home / "events.jsonl"
    until = time.monotonic() + LAUNCH_TIMEOUT
    while registers and events.read_text().count('"registered"') < 2:
        assert joiner.poll() is None, joiner.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    return joiner


def test_a_worker_joins_with_its_script(launch, train, gpt_hash, tmp_path):
    gate, fast = tmp_path / "gate", tmp_path / "fast"
    script = ("gpt.py", *LONG, "--gate", str(gate), "--slow", str(fast))
    expected = the_gpt_hash(train, gpt_hash, *LONG)
    launched = launch(*script)
    joiner = join(launched, tmp_path / "joiner", script)
    gate.touch()
    launched.await_event("joined")
    fast.touch()
    ended = launched.end()
    _, told = joiner.communicate(timeout=LAUNCH_TIMEOUT)
    assert ended.hash == expected
    assert joiner.returncode == 0, told
    assert len(ended.report["generations"]) > 1, "it took part"


def test_a_worker_in_another_directory_has_the_model_of_the_last_checkpoint(launch, tmp_path):
    gate, saved = tmp_path / "gate", tmp_path / "saved"
    saved.mkdir()
    script = ("faulty.py", "shared", "300", str(gate), str(saved))
    launched = launch(*script, flags=("--checkpoint-every", "1000"))
    joiner = join(launched, tmp_path / "joiner", script)
    gate.touch()
    ended = launched.end()
    out, told = joiner.communicate(timeout=LAUNCH_TIMEOUT)
    assert joiner.returncode == 0, told
    assert f"hash {ended.hash}" in out
    models = {path.read_bytes() for path in saved.iterdir()}
    assert len(list(saved.iterdir())) == 2 and len(models) == 1


def test_a_worker_that_is_told_to_leave_hands_over_and_ends(launch, train, gpt_hash, tmp_path):
    expected = the_gpt_hash(train, gpt_hash, *LONG)
    gate = tmp_path / "gate"
    launched = launch("gpt.py", *LONG, "--gate", str(gate), flags=workers(2))
    launched.await_steps(5)
    launched.until("two members", lambda: len(launched.workers()) == 2)
    os.kill(launched.workers()[0], signal.SIGTERM)
    launched.await_event("draining")
    gate.touch()
    ended = launched.end()
    assert ended.hash == expected
    assert any(event["event"] == "left" for event in launched.events())


def test_a_worker_that_reaches_no_model_ends_well_and_says_so(launch, tmp_path):
    gate, saved = tmp_path / "gate", tmp_path / "saved"
    saved.mkdir()
    script = ("faulty.py", "shared", "300", str(gate), str(saved))
    launched = launch(*script)
    joiner = join(launched, tmp_path / "joiner", script)
    gate.touch()
    assert launched.end().code == 0
    out, told = joiner.communicate(timeout=LAUNCH_TIMEOUT)
    assert joiner.returncode == 0, told
    assert "hash None" in out
    assert "was not written: this worker has no trained model" in told
    assert len(list(saved.iterdir())) == 1


def test_as_many_workers_start_as_the_cores_compute_for(train):
    ended = train("faulty.py", "none", "30", flags=("--workers", "auto"))
    assert ended.code == 0, ended.err
    assert len(ended.report["workers"]) == len(os.sched_getaffinity(0))
