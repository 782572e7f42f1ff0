"""Scripts without a launcher: `python script.py`, and what a notebook does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import LAUNCH_TIMEOUT, SCRIPTS, descendants, is_alive, needs_torch

pytestmark = needs_torch


@pytest.fixture
def start(tmp_path):
    """Starts a Python process as a user does. No process survives the test."""
    started: list[subprocess.Popen] = []

    def begin(*arguments: str, **variables: str) -> subprocess.Popen:
        environment = {**os.environ, "EVERSTEP_DIR": str(tmp_path / "run"), **variables}
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, *arguments], stdout=pipe, stderr=pipe, text=True, cwd=tmp_path,
            env=environment,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()


def await_steps(directory, count: int, process: subprocess.Popen) -> None:
    lines = directory / "run" / "metrics.jsonl"
    until = time.monotonic() + LAUNCH_TIMEOUT
    while not lines.exists() or lines.read_text().count("\n") < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)


def assert_all_end(pids: set[int]) -> None:
    until = time.monotonic() + 60
    while any(map(is_alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not [pid for pid in pids if is_alive(pid)]


def test_a_plain_script_has_the_bits_of_a_launched_one(start, train, tmp_path):
    expected = train("gpt.py").hash
    process = start(str(SCRIPTS / "gpt.py"), EVERSTEP_CHECKPOINT_EVERY="10")
    out, err = process.communicate(timeout=LAUNCH_TIMEOUT)
    assert process.returncode == 0, err
    assert f"hash {expected}" in out
    assert "another worker joins with" in err and "gpt.py" in err, err
    assert (tmp_path / "run" / "report.json").exists()
    assert (tmp_path / "run" / "checkpoints" / "step-000024").exists()


def test_a_plain_script_that_fails_ends_its_run_and_all_of_its_processes(start):
    process = start(str(SCRIPTS / "faulty.py"), "exception")
    out, err = process.communicate(timeout=LAUNCH_TIMEOUT)
    assert process.returncode == 1
    assert "ValueError: the loss looks odd" in err and "the script raised" in err, err


@pytest.mark.parametrize("fault", ["break", "exit"])
def test_a_plain_script_that_ends_early_fails_in_words(start, fault):
    process = start(str(SCRIPTS / "faulty.py"), fault)
    out, err = process.communicate(timeout=LAUNCH_TIMEOUT)
    assert process.returncode == 1
    assert "before its run was over" in err, err
    assert (fault == "break") == ("after the loop" in out)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_a_plain_script_that_is_ended_leaves_no_process(start, tmp_path, sent):
    process = start(str(SCRIPTS / "faulty.py"), "slow", "100000", EVERSTEP_GRACE="1")
    await_steps(tmp_path, 5, process)
    children = descendants(process.pid)
    assert len(children) >= 2, "a launcher and a coordinator"
    process.send_signal(sent)
    process.communicate(timeout=30)
    assert process.returncode != 0
    assert_all_end(children)


NOTEBOOK = """
import os
import sys
import time
from pathlib import Path
import torch
from torch import nn
import everstep

class Numbers:
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.tensor([index / 64.0])

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 1))
torch.randn(64, 64) @ torch.randn(64, 64)  # its threads have begun
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
run = everstep.Run(model, optimizer, data=Numbers(), steps=int(sys.argv[2]), data_shards=2,
                   micro_batch=4, name="faulty")
run.add_workers(2, sys.argv[1], "slow", sys.argv[2])
seen = 0
for x in run:
    break  # as an interruption does
for x in run:
    seen += 1
    # Slow until others take part.
    events = Path(os.environ["EVERSTEP_DIR"], "events.jsonl").read_bytes()
    time.sleep(0.01 if b'"joined"' in events else 0.05)
    run.backward((model(x) - 3 * x).square().mean())
print("turns", seen, "generations", len(run.report.generations))
print("hash", run.report.state_hash)
"""


def test_a_notebook_trains_with_workers_that_it_adds(start, train):
    expected = train("faulty.py", "slow", "900").hash
    process = start("-c", NOTEBOOK, str(SCRIPTS / "faulty.py"), "900")
    out, err = process.communicate(timeout=LAUNCH_TIMEOUT)
    assert process.returncode == 0, err
    assert f"hash {expected}" in out
    told = out.split("turns ")[1].split()
    assert int(told[0]) < 1800 and int(told[2]) > 1, "the others have taken part"
