"""A process without a launcher, such as a notebook's: it starts a launcher of its own, as a child.

The process states its run to the launcher, which starts the coordinators. Then the process joins as
a worker. Every child ends when the process does, however it ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

#: How long children may take to end after their run, seconds.
END_TIMEOUT = 5.0
#: How long a launcher may take to tell of the end of a run, seconds.
TELL_TIMEOUT = 1.0


class Launcher:
    """The launcher, and the further workers of this process."""

    def __init__(self, statement: str, threads: int) -> None:
        self._threads = threads
        command = [sys.executable, "-m", "everstep", "launch", "--attached"]
        command += ["--threads", str(threads), *own_script()]
        pipe = subprocess.PIPE
        # A session of its own: Ctrl-C reaches this process alone, and the launcher ends with it.
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=_stderr(), text=True, start_new_session=True
        )
        self._workers: list[subprocess.Popen[bytes]] = []
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(statement + "\n")
        self._process.stdin.flush()
        #: The directory with the run's files.
        self.directory = self._await_directory()
        self._addresses = self._await_coordinators()
        self._told: threading.Thread | None = None

    def environment(self) -> dict[str, str]:
        """The variables with which this process joins."""
        variables = {
            "EVERSTEP_COORDINATORS": ",".join(self._addresses),
            "EVERSTEP_JOIN": f"@{self.directory / 'join.token'}",
            "EVERSTEP_DIR": str(self.directory),
        }
        # Perhaps no other worker can take over, and the terminal is the user's.
        others = {"EVERSTEP_GRACE": "10", "EVERSTEP_LOG": "warn"}
        return {**{name: it for name, it in others.items() if name not in os.environ}, **variables}

    def watch(self, ended: Callable[[int, str], None]) -> None:
        """Prints what the launcher prints. Calls ``ended`` if it fails."""

        def tell() -> None:
            assert self._process.stdout is not None
            for line in self._process.stdout:
                print(line, end="", flush=True)
            code = self._process.wait()
            if code != 0:
                ended(abs(code), "error: the run has failed, and its launcher has said why")

        self._told = threading.Thread(target=tell, name="launcher", daemon=True)
        self._told.start()

    def add(self, count: int, command: Sequence[str]) -> None:
        """Starts so many processes of a script as further workers."""
        for _ in range(count):
            number = len(self._workers) + 1
            log = self.directory / "logs" / f"added-{number}.log"
            everstep = [sys.executable, "-m", "everstep"]
            worker = [*everstep, "worker", "--coordinators", ",".join(self._addresses)]
            worker += ["--join", f"@{self.directory / 'join.token'}", "--dir", str(self.directory)]
            worker += ["--threads", str(self._threads), "--", *command]
            if sys.platform == "linux":
                worker = [*everstep, "leash", str(os.getpid()), *worker]
            with open(log, "ab") as file:
                self._workers.append(
                    subprocess.Popen(
                        worker, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                        start_new_session=True, env=_without_own_variables(),
                    )
                )

    def end(self, timeout: float = TELL_TIMEOUT) -> None:
        """Waits for the launcher and the workers, which end with their run, and ends the others."""
        _await(self._process, timeout)
        assert self._process.stdin is not None
        self._process.stdin.close()
        for worker in self._workers:
            if not _await(worker, timeout):
                worker.terminate()
        processes: list[subprocess.Popen[Any]] = [self._process, *self._workers]
        for process in processes:
            if not _await(process, END_TIMEOUT):
                process.kill()
                process.wait()
        if self._told is not None:
            self._told.join(TELL_TIMEOUT)

    def _await_directory(self) -> Path:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith('{"directory"'):
                return Path(json.loads(line)["directory"])
            print(line, end="", flush=True)
        self._fail()

    def _await_coordinators(self) -> list[str]:
        while True:
            try:
                cluster = json.loads((self.directory / "cluster.json").read_text())
            except (OSError, ValueError):
                cluster = {"coordinators": []}
            found = [it["address"] for it in cluster["coordinators"] if it.get("address")]
            if found and (self.directory / "join.token").exists():
                return found
            if self._process.poll() is not None:
                self._fail()
            time.sleep(0.02)

    def _fail(self) -> NoReturn:
        code = self._process.wait()
        raise RuntimeError(f"the launcher of this run has ended with exit code {code}")


def own_script() -> list[str]:
    """The script of this process with its arguments. Empty in a notebook."""
    path = getattr(sys.modules["__main__"], "__file__", None)
    return [path, *sys.argv[1:]] if path and os.path.isfile(path) else []


def _stderr() -> int | None:
    """Where the launcher tells how the run does. None: the terminal of this process."""
    try:
        return None if sys.stderr.fileno() == 2 else subprocess.STDOUT
    except (AttributeError, ValueError, OSError):
        return subprocess.STDOUT


def _await(process: subprocess.Popen[Any], timeout: float) -> bool:
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        return False
    return True


def _without_own_variables() -> dict[str, str]:
    return {name: it for name, it in os.environ.items() if not name.startswith("EVERSTEP_")}
