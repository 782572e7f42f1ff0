#!/usr/bin/env python3
"""One worker of a local cluster computes at a part of its speed. Measures how long a step takes
before, with equal shares of the data shards, and with the shares that the leader makes of that.

    cargo build --release
    tests/machines/slow.py [--workers 4] [--speed 0.5] [--seconds 60]

The worker is stopped and continued many times a second (SIGSTOP, SIGCONT). Standard output is JSON:
the median step of each phase in seconds, and the shares at its end. What happens goes to standard
error. Needs an otherwise idle machine, and some minutes.
"""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# How long the slow worker stands still and goes on, seconds.
PERIOD = 0.04
RUN = """
[run]
name = "slow"
steps = 1000000
[model]
kind = "gpt"
layers = 2
heads = 4
width = 128
context = 64
[batch]
data_shards = 16
micro_batch = 4
"""


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("--everstep", type=Path, default=ROOT / "target/release/everstep")
    flags.add_argument("--workers", type=int, default=4)
    flags.add_argument("--speed", type=float, default=0.5, help="of the slow worker")
    flags.add_argument("--seconds", type=float, default=60.0, help="each phase takes, at most")
    told = flags.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        config, directory = Path(scratch) / "run.toml", Path(scratch) / "run"
        config.write_text(RUN)
        command = [told.everstep, "train", "--config", config, "--dir", directory]
        command += ["--workers", str(told.workers), "--threads", "1"]
        train = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            print(json.dumps(measure(Run(directory), told.speed, told.seconds), indent=2))
        finally:
            train.send_signal(signal.SIGINT)
            train.wait(60)


class Run:
    """The files of a run under way."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.until(lambda: len(self.steps()) > 20)

    def until(self, is_true, seconds: float = 60.0) -> bool:
        end = time.monotonic() + seconds
        while not is_true() and time.monotonic() < end:
            time.sleep(0.1)
        return is_true()

    def steps(self) -> list[float]:
        """How long each step has taken so far, seconds."""
        lines = self._directory / "metrics.jsonl"
        text = lines.read_text() if lines.exists() else ""
        return [json.loads(line)["seconds"] for line in text.split("\n")[:-1]]

    def members(self) -> list[dict]:
        workers = json.loads((self._directory / "cluster.json").read_text())["workers"]
        members = [worker for worker in workers if worker.get("rank") is not None]
        return sorted(members, key=lambda worker: worker["rank"])

    def shares(self) -> list[int]:
        return [worker["data_shards"] for worker in self.members()]

    def phase(self, seconds: float) -> dict:
        """Measures for so long, or until the shares change."""
        shares, first = self.shares(), len(self.steps())
        self.until(lambda: self.shares() != shares, seconds)
        last = len(self.steps()) - 5  # those of the change itself
        return {"seconds": round(statistics.median(self.steps()[first:last]), 4), "shares": shares}


def measure(run: Run, speed: float, seconds: float) -> dict:
    found = {"undisturbed": run.phase(seconds / 2)}
    slow = Slow(run.members()[-1]["pid"], speed)
    print("the worker of the highest rank is slow", file=sys.stderr)
    try:
        found["equal shares"] = run.phase(seconds)
        # The first change may come before the pace of each worker is that of its last steps alone.
        run.until(lambda: False, seconds)
        found["shares by pace"] = run.phase(seconds / 2)
    finally:
        slow.end()
    equal, by_pace = (found[phase]["seconds"] for phase in ("equal shares", "shares by pace"))
    return {**found, "times faster": round(equal / by_pace, 3)}


class Slow:
    """A process that stands still for a part of the time."""

    def __init__(self, pid: int, speed: float) -> None:
        self._pid, self._speed, self._is_over = pid, speed, threading.Event()
        self._thread = threading.Thread(target=self._interrupt)
        self._thread.start()

    def _interrupt(self) -> None:
        while not self._is_over.wait(PERIOD * self._speed):
            os.kill(self._pid, signal.SIGSTOP)
            time.sleep(PERIOD * (1.0 - self._speed))
            os.kill(self._pid, signal.SIGCONT)

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()


if __name__ == "__main__":
    main()
