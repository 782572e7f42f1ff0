"""Launches scripts as users do, and kills their processes."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

try:
    import torch  # noqa: F401
except (ImportError, ValueError, OSError):
    HAS_TORCH = False
else:
    HAS_TORCH = True

SCRIPTS = Path(__file__).parent / "scripts"
# All scripts but the examples begin without the compiler of PyTorch.
os.environ["PYTHONPATH"] = str(Path(__file__).parent / "site")
#: How long a launch of these small runs may take, seconds: machines of CI may be busy.
LAUNCH_TIMEOUT = 300

# A shell that starts pytest in the background has it ignore Ctrl-C. Its children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

HAS_JAX = importlib.util.find_spec("jax") is not None
#: Marks tests that need JAX. The module everstep.jax is imported before JAX.
needs_jax = pytest.mark.skipif(not HAS_JAX, reason="there is no JAX here")
#: Marks tests that train a model of PyTorch.
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="there is no PyTorch here")


@dataclass
class Launch:
    """A launcher under way."""

    process: subprocess.Popen[str]
    folder: Path

    @property
    def directory(self) -> Path:
        return self.folder / "run"

    def end(self) -> "Ended":
        out, err = self.process.communicate(timeout=LAUNCH_TIMEOUT)
        report = self.folder / "report.json"
        told = json.loads(report.read_text()) if report.exists() and report.stat().st_size else {}
        return Ended(self.process.returncode, out, err, told, self.directory)

    def until(self, what: str, is_true) -> None:
        until = time.monotonic() + LAUNCH_TIMEOUT
        while not is_true():
            assert self.process.poll() is None, f"the launcher has ended before {what}"
            assert time.monotonic() < until, what
            time.sleep(0.02)

    def events(self) -> list[dict]:
        """All events of the run so far."""
        events = self.directory / "events.jsonl"
        text = events.read_text() if events.exists() else ""
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def await_event(self, kind: str, least: int = 0) -> None:
        """Waits for an event of this kind, with at least this step if it has one."""

        def is_wanted(event: dict) -> bool:
            return event["event"] == kind and event.get("step", least) >= least

        self.until(f"an event: {kind}", lambda: any(map(is_wanted, self.events())))

    def steps(self) -> int:
        """How many steps are settled."""
        lines = self.directory / "metrics.jsonl"
        return lines.read_text().count("\n") if lines.exists() else 0

    def await_steps(self, count: int) -> None:
        self.until(f"step {count}", lambda: self.steps() >= count)

    def kill_all(self) -> None:
        """Kills every process of the launch at once, as a power cut would."""
        everything = [self.process.pid, *descendants(self.process.pid)]
        for pid in everything:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it has ended
        self.process.communicate()
        until = time.monotonic() + 60
        while any(map(is_alive, everything)) and time.monotonic() < until:
            time.sleep(0.02)
        assert not [pid for pid in everything if is_alive(pid)]

    def workers(self) -> list[int]:
        """The process ids of the living workers that take part."""
        try:
            views = json.loads((self.directory / "cluster.json").read_text())["workers"]
        except (OSError, ValueError):
            return []
        found = [view["pid"] for view in views if view.get("pid") and view.get("rank") is not None]
        return [pid for pid in found if is_alive(pid)]


@dataclass
class Ended:
    """A launcher that has ended."""

    code: int
    out: str
    err: str
    report: dict
    directory: Path

    @property
    def hash(self) -> str:
        assert self.code == 0, f"exit code {self.code}\n{self.out}\n{self.err}\n{self.logs()}"
        return self.report["state_hash"]

    def logs(self) -> str:
        files = sorted((self.directory / "logs").glob("worker-*.log"))
        return "\n".join(f"--- {file.name}\n{file.read_text()[-2000:]}" for file in files)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def descendants(pid: int) -> set[int]:
    """The processes that a process has started, and those that they have started."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, open_ = set(), [pid]
    while open_:
        for child in children.get(open_.pop(), []):
            found.add(child)
            open_.append(child)
    return found


def peak_mb(pid: int) -> float:
    """The most memory that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith("VmHWM"))


@pytest.fixture
def launch(tmp_path):
    """Starts `everstep launch FLAGS… SCRIPT ARGS…` in a new folder, and `launch.resume` starts
    `everstep resume` on its directory. No process survives the test."""
    launched: list[Launch] = []

    def begin(folder: Path, *command: str) -> Launch:
        command = (sys.executable, "-m", "everstep", *command)
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=folder)
        launched.append(Launch(process, folder))
        return launched[-1]

    def start(script: str, *arguments: str, flags: tuple[str, ...] = ()) -> Launch:
        folder = tmp_path / str(len(launched))
        folder.mkdir()
        files = ("--report", str(folder / "report.json"), "--dir", str(folder / "run"))
        return begin(folder, "launch", *files, *flags, str(SCRIPTS / script), *arguments)

    def resume(before: Launch, *flags: str) -> Launch:
        files = ("--report", str(before.folder / "report.json"))
        return begin(before.folder, "resume", str(before.directory), *files, *flags)

    start.resume = resume
    yield start
    for each in launched:
        if each.process.poll() is None:
            os.kill(each.process.pid, signal.SIGKILL)
            each.process.wait()


@pytest.fixture
def train(launch):
    """Launches a script to its end."""
    return lambda *arguments, **options: launch(*arguments, **options).end()
