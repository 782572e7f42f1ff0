"""A notebook, in a kernel of Jupyter: interrupted as its user does it, and run on."""

from __future__ import annotations

import importlib.util
import os
import time

import pytest
from conftest import LAUNCH_TIMEOUT, SCRIPTS, descendants, is_alive, needs_torch

pytestmark = [
    needs_torch,
    pytest.mark.skipif(
        importlib.util.find_spec("ipykernel") is None, reason="there is no package ipykernel here"
    ),
]

#: The loop as a cell. It stands still at step 20 until the gate is there.
LOOP = """
import time
from pathlib import Path
for x in run:
    while run.step >= 20 and not Path({gate!r}).exists():
        time.sleep(0.01)
    run.backward((model(x) - 3 * x).square().mean())
print("hash", run.report.state_hash)
"""


class Notebook:
    """A kernel, and what its cells have printed."""

    def __init__(self, folder) -> None:
        from jupyter_client.manager import start_new_kernel

        os.environ["EVERSTEP_DIR"] = str(folder / "run")
        self.kernel, self.client = start_new_kernel(cwd=str(folder))
        del os.environ["EVERSTEP_DIR"]
        self.printed: list[str] = []

    def run(self, cell: str) -> str:
        """Runs a cell to its end. Returns the name of its exception, or an empty string."""
        return self.await_end(self.begin(cell))

    def begin(self, cell: str) -> str:
        return self.client.execute(cell)

    def await_end(self, asked: str) -> str:
        error = ""
        while True:
            message = self.client.get_iopub_msg(timeout=LAUNCH_TIMEOUT)
            if message["parent_header"].get("msg_id") != asked:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                self.printed.append(content["text"])
            elif message["msg_type"] == "error":
                error = content["ename"]
                self.printed.extend(content["traceback"])
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                return error


@pytest.fixture
def notebook(tmp_path):
    made = Notebook(tmp_path)
    yield made
    made.client.stop_channels()
    made.kernel.shutdown_kernel(now=True)


def test_a_notebook_that_is_interrupted_goes_on_with_the_same_bits(train, notebook, tmp_path):
    expected = train("notebook.py").hash
    gate = tmp_path / "gate"
    setup = (SCRIPTS / "notebook.py").read_text().split("# The loop.")[0]
    assert notebook.run(setup) == "", notebook.printed
    kernel = notebook.kernel.provisioner.process.pid
    loaders = descendants(kernel)
    asked = notebook.begin(LOOP.format(gate=str(gate)))
    lines = tmp_path / "run" / "metrics.jsonl"
    until = time.monotonic() + LAUNCH_TIMEOUT
    while not lines.exists() or lines.read_text().count("\n") < 18:
        assert time.monotonic() < until
        time.sleep(0.05)
    notebook.kernel.interrupt_kernel()
    assert notebook.await_end(asked) == "KeyboardInterrupt", notebook.printed
    assert loaders and all(map(is_alive, loaders)), "they outlive it"
    gate.touch()
    assert notebook.run(LOOP.format(gate=str(gate))) == "", notebook.printed
    assert f"hash {expected}" in "".join(notebook.printed), notebook.printed
