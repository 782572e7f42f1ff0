"""`everstep launch --dry-run`: what a script would need, without training."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import LAUNCH_TIMEOUT, SCRIPTS, Ended, needs_torch, peak_mb

pytestmark = needs_torch


def dry_run(folder: Path, *flags_and_script: str) -> Ended:
    command = (sys.executable, "-m", "everstep", "launch", "--dry-run", *flags_and_script)
    ended = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, timeout=LAUNCH_TIMEOUT
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr, {}, folder)


def megabytes(told: str, what: str) -> float:
    line = next(line for line in told.splitlines() if line.strip().startswith(what))
    return float(line.split()[-2])


@pytest.mark.parametrize("workers", [1, 2])
def test_a_dry_run_says_what_workers_take(launch, tmp_path, workers):
    gate = tmp_path / "gate"
    script = ("--layers", "8", "--width", "384", "--steps", "24")
    flags = ("--workers", str(workers))
    told = dry_run(tmp_path, *flags, str(SCRIPTS / "gpt.py"), *script)
    assert told.code == 0, told.err
    expected = megabytes(told.out, "together, about")
    launched = launch("gpt.py", *script, f"--gate={gate}", flags=flags)
    launched.await_steps(18)
    peaks = [peak_mb(pid) for pid in launched.workers()]
    gate.touch()
    assert launched.end().code == 0
    assert len(peaks) == workers
    assert abs(expected / max(peaks) - 1) < 0.1, (told.out, peaks)


def test_a_dry_run_tells_of_checkpoints_and_leaves_nothing(tmp_path):
    flags = ("--checkpoint-every", "10")
    told = dry_run(tmp_path, *flags, str(SCRIPTS / "validated.py"))
    assert told.code == 0, told.err
    for words in ("(37 held out)", "checkpoints     every 10 steps", "the script, measured"):
        assert words in told.out, told.out
    assert "plain" not in told.out + told.err, "what comes after the loop was not run"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("fault", "words"), [("half", "loss_scaling=True"), ("adafactor", "rows and columns of whole")]
)
def test_a_script_that_errs_is_not_measured(tmp_path, fault, words):
    told = dry_run(tmp_path, str(SCRIPTS / "faulty.py"), fault)
    assert told.code == 1
    assert words in told.err and "the script cannot be measured" in told.err, told.err
    assert told.err.count("Traceback") == 1, told.err
    assert told.out == ""


def test_a_script_without_a_run_is_not_measured(tmp_path):
    script = tmp_path / "plain.py"
    script.write_text("print('no run')")
    told = dry_run(tmp_path, str(script))
    assert told.code == 1
    assert "ended with exit code 0 before it had computed a micro-batch" in told.err, told.err
    assert told.out == "", "what a script prints is not the answer"
