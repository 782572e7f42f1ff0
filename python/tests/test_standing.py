"""Scripts on a cluster of daemons: a run is submitted, and its workers are processes of the script."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import LAUNCH_TIMEOUT, SCRIPTS, needs_torch

pytestmark = needs_torch

STEPS = "200"


class Cluster:
    """A coordinator, and workers that are processes of a script. Each has a directory in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, []
        self.address = ""
        self.coordinator()

    def begin(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        log = (self.folder / f"{name}.log").open("a")
        command = [sys.executable, "-m", "everstep", *arguments, "--dir", str(self.folder / name)]
        if "--" in arguments:
            script = arguments.index("--")
            command = command[: 3 + script] + command[-2:] + list(arguments[script:])
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.processes.append(process)
        return process

    def coordinator(self) -> None:
        listen = self.address or "127.0.0.1:0"
        begins = () if self.address else ("--bootstrap",)
        process = self.begin("coordinator", "coordinator", "--listen", listen, *begins)
        self.address = json.loads(process.stdout.readline())["address"]

    def worker(self, name: str, script: str, *arguments: str) -> subprocess.Popen[str]:
        flags = ("--coordinators", self.address, "--join", f"@{self.folder}/coordinator/join.token")
        command = ("--", str(SCRIPTS / script), *arguments)
        return self.begin(name, "worker", *flags, "--listen", "127.0.0.1:0", *command)

    def ask(self, *words: str, after: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        place = ("--dir", str(self.folder / "coordinator"))
        command = [sys.executable, "-m", "everstep", "run", *words, *place, *after]
        return subprocess.run(command, capture_output=True, text=True, timeout=LAUNCH_TIMEOUT)

    def submit(self, *flags: str, script: tuple[str, ...]) -> str:
        told = self.ask("submit", *flags, after=("--", str(SCRIPTS / script[0]), *script[1:]))
        assert told.returncode == 0, told.stderr
        return told.stdout + told.stderr

    def status(self) -> dict:
        told = self.ask("status", "--json")
        assert told.returncode == 0, told.stderr
        return json.loads(told.stdout)

    def until(self, what: str, is_true) -> None:
        until = time.monotonic() + LAUNCH_TIMEOUT
        while not is_true():
            assert time.monotonic() < until, f"{what}\n{self.status()}\n{self.logs()}"
            time.sleep(0.1)

    def logs(self) -> str:
        return "\n".join(f"--- {log.name}\n{log.read_text()[-2000:]}" for log in self.folder.glob("*.log"))

    def kill_all(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()
        self.processes = []


@pytest.fixture
def cluster(tmp_path):
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.kill_all()


def test_a_script_is_submitted_and_trained_by_its_own_processes(cluster, train):
    script = ("faulty.py", "slow", STEPS)
    workers = [cluster.worker("first", *script)]
    stranger = cluster.worker("stranger", "faulty.py", "slow", "77")
    said = cluster.submit("--workers", "2", script=script)
    assert "starting: " in said and "process of its script" in said, said
    log = cluster.folder / "stranger.log"
    cluster.until("the stranger is refused", lambda: "number of steps differ" in log.read_text())
    workers.append(cluster.worker("second", *script))
    for worker in workers:
        out, _ = worker.communicate(timeout=LAUNCH_TIMEOUT)
        assert worker.returncode == 0, cluster.logs()
    cluster.until("the run is complete", lambda: cluster.status()["state"] == "complete")
    assert cluster.status()["hash"] == train(*script).hash
    assert stranger.poll() is None or stranger.returncode == 1


def test_a_run_outlives_all_processes_of_its_cluster(cluster, train, tmp_path):
    hold = tmp_path / "hold"
    hold.write_text("60")
    script = ("faulty.py", "held", STEPS, str(hold))
    config = tmp_path / "checkpoints.toml"
    config.write_text(f'[checkpoint]\nevery = 10\npath = "{tmp_path}/store"\n')
    cluster.submit("--config", str(config), script=script)
    cluster.worker("first", *script)
    cluster.until("a step that waits", lambda: cluster.status()["step"] >= 50)
    cluster.kill_all()
    cluster.coordinator()
    workers = [cluster.worker(name, *script) for name in ("first", "second")]
    log = cluster.folder / "coordinator.log"
    # One that came after the end would wait for the next run.
    cluster.until("both are there", lambda: log.read_text().count('event="registered"') >= 3)
    hold.write_text(STEPS)
    cluster.until("the run is complete", lambda: cluster.status()["state"] == "complete")
    for worker in workers:
        worker.communicate(timeout=LAUNCH_TIMEOUT)
    assert cluster.status()["hash"] == train("faulty.py", "slow", STEPS).hash
    back = re.findall(r"went back from step \d+ to step (\d+)", log.read_text())
    assert back and min(map(int, back)) >= 10, log.read_text()


def test_a_cancelled_run_is_no_complete_one(cluster, tmp_path):
    hold = tmp_path / "hold"
    hold.write_text("20")
    script = ("faulty.py", "held", STEPS, str(hold))
    cluster.submit(script=script)
    worker = cluster.worker("first", *script)
    cluster.until("a step that waits", lambda: cluster.status()["step"] >= 10)
    assert cluster.ask("cancel").returncode == 0
    hold.write_text(STEPS)
    worker.communicate(timeout=LAUNCH_TIMEOUT)
    log = (cluster.folder / "first.log").read_text()
    assert worker.returncode == 1 and "`everstep run status` says how" in log, log


def test_what_cannot_be_submitted_is_refused_in_words(cluster, tmp_path):
    missing = cluster.ask("submit", after=("--", str(tmp_path / "train.py")))
    assert missing.returncode == 2 and "no such file" in missing.stderr, missing.stderr
    broken = tmp_path / "broken.py"
    broken.write_text('raise ValueError("there are no texts")')
    failing = cluster.ask("submit", after=("--", str(broken)))
    assert failing.returncode == 1 and "there are no texts" in failing.stderr, failing.stderr
    assert "before it had computed a micro-batch" in failing.stderr, failing.stderr
    script = ("--", str(SCRIPTS / "faulty.py"), "slow")
    config = tmp_path / "run.toml"
    config.write_text('[checkpoint]\nevery = 5\npath = "store"\n')
    for flags in (("--checkpoint-every", "5"), ("--config", str(config))):
        relative = cluster.ask("submit", *flags, after=script)
        assert relative.returncode == 2 and "checkpoint.path" in relative.stderr, relative.stderr
        assert "measuring" not in relative.stderr, relative.stderr
    misplaced = cluster.ask("submit", "--workers", "3", str(config))
    assert misplaced.returncode == 2 and "--workers" in misplaced.stderr, misplaced.stderr
