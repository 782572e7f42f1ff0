"""Models on a device with memory of its own. No GPU is needed: `mirrored.py` has the CPU copy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import namedtuple
from types import SimpleNamespace

import pytest
from conftest import LAUNCH_TIMEOUT, needs_torch

pytestmark = needs_torch

#: How a machine without a GPU is made of any: the variable hides them. The launcher needs none of the
#: libraries that stand for CUDA's here.
HIDDEN = {name: it for name, it in os.environ.items() if name != "LD_LIBRARY_PATH"}
HIDDEN["CUDA_VISIBLE_DEVICES"] = ""


@pytest.mark.parametrize(
    "script", [("gpt.py",), ("gpt.py", "--bf16", "--loaders", "1", "--accumulate", "1"), ("cnn.py",)],
    ids=" ".join,
)
def test_a_mirror_changes_no_bit_on_1_and_2_workers(train, script):
    expected = train(*script).hash
    for count in ("1", "2"):
        assert train("mirrored.py", *script, flags=("--workers", count)).hash == expected, count


def test_a_run_names_the_gpus_of_its_workers(train):
    report = train("mirrored.py", "gpt.py", flags=("--workers", "2")).report
    found = [worker["device"]["gpu"] for worker in report["workers"]]
    assert [it["uuid"] for it in found] == ["8c7e2a010000400080000123456789ab"] * 2
    assert (found[0]["kind"], found[0]["capability"], found[0]["number"]) == ("cuda", "9.0", 0)
    assert report["bitwise"] is True and report["model_flops_utilization"] is None


def test_killed_workers_change_no_bit_of_a_mirrored_run(launch, train, tmp_path):
    expected = train("gpt.py", "--steps", "60").hash
    fast = tmp_path / "fast"
    script = ("mirrored.py", "gpt.py", "--steps", "60", "--slow", str(fast))
    launched = launch(*script, flags=("--workers", "2", "--respawn"))
    launched.await_steps(20)
    launched.until("two members", lambda: len(launched.workers()) > 1)
    killed = launched.workers()[-1]
    os.kill(killed, signal.SIGKILL)
    launched.until("a successor", lambda: len(set(launched.workers()) - {killed}) > 1)
    fast.touch()
    ended = launched.end()
    assert ended.hash == expected and ended.report["respawned"] == 1
    assert (ended.report["samples_lost"], ended.report["samples_repeated"]) == (0, 0)


def test_evaluations_and_scalars_of_a_mirrored_run_are_the_same(train):
    plain = train("validated.py", "3")
    mirrored = train("mirrored.py", "validated.py", "3", flags=("--workers", "2"))
    assert mirrored.hash == plain.hash
    assert mirrored.report["loss"] == plain.report["loss"]
    lines = [(it.directory / "metrics.jsonl").read_text().splitlines() for it in (plain, mirrored)]
    assert len(lines[0]) == len(lines[1]) == 10 and "scalars" in lines[1][0]


@pytest.mark.parametrize("kind", ["adamw", "nadam"])
def test_a_mirrored_run_is_exported_as_any_other(train, tmp_path, kind):
    import torch

    found = []
    for first in ([], ["mirrored.py"]):
        path = tmp_path / f"{len(found)}.pt"
        script = (*first, "export.py", kind, "20", str(path), str(tmp_path / "plain.pt"))
        ended = train(*script, flags=("--checkpoint-every", "50"))
        assert ended.code == 0, ended.err + ended.logs()
        found.append(torch.load(path))
    plain, mirrored = found
    torch.testing.assert_close(mirrored["model"], plain["model"], rtol=0.0, atol=0.0)
    torch.testing.assert_close(
        mirrored["optimizer"]["state"], plain["optimizer"]["state"], rtol=0.0, atol=0.0
    )


def test_the_engine_writes_a_mirror_only_after_its_copy_has_ended():
    import torch

    from everstep.mirror import MirroredMemory

    log = []

    class Transfers:
        device = torch.device("cpu")
        host_memory = staticmethod(torch.zeros)

        def copy(self, to, source):
            to.copy_(source)
            log.append("copy")
            return SimpleNamespace(synchronize=lambda: log.append("ended"))

    memory = MirroredMemory(3, Transfers())
    memory.host.fill_(7.0)
    memory.update(0)
    memory.settle()
    assert log == [], "the engine has written nothing"
    memory.update(2)
    memory.update(2)
    assert log == ["copy"] and memory.flat.tolist() == [7.0] * 3
    memory.settle()
    memory.settle()
    assert log == ["copy", "ended"]


def test_trained_parameters_are_on_one_device():
    import torch

    from everstep import device

    def on(*places):
        return [(f"p{at}", SimpleNamespace(device=torch.device(it))) for at, it in enumerate(places)]

    assert device.of(on("cuda:1", "cuda:1")) == torch.device("cuda:1")
    for places, words in [
        (("cpu", "cuda:0"), r"p0 is on cpu, and p1 on cuda:0: all trained .* one device"),
        (("cuda:0", "cuda:1"), "p1 on cuda:1"),
        (("cpu", "meta"), "p1 is on meta: Everstep trains on the CPU, or on one NVIDIA GPU"),
    ]:
        with pytest.raises(ValueError, match=words):
            device.of(on(*places))


def test_a_batch_goes_to_the_device_of_the_model_with_all_its_parts():
    import torch

    from everstep.device import moved

    Pair = namedtuple("Pair", "x y")
    x, meta = torch.ones(2), torch.device("meta")
    batch = {"pair": Pair(x, "a"), "list": [x, (x, 3)], "none": None}
    assert moved(batch, torch.device("cpu")) is batch
    found = moved(batch, meta)
    assert isinstance(found["pair"], Pair) and found["pair"].y == "a" and found["none"] is None
    tensors = found["pair"].x, found["list"][0], found["list"][1][0]
    assert {it.device for it in tensors} == {meta} and found["list"][1][1] == 3
    assert moved(SimpleNamespace(to=lambda device: device), meta) == meta


def launched(folder, *arguments: str) -> subprocess.CompletedProcess[str]:
    names = "CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG"
    script = f"import os\nprint('sees', [os.environ[name] for name in {names}])\n"
    (folder / "see.py").write_text(script)
    command = (sys.executable, "-m", "everstep", "launch", *arguments, "see.py")
    return subprocess.run(
        command, capture_output=True, text=True, cwd=folder, timeout=LAUNCH_TIMEOUT, env=HIDDEN
    )


def test_a_launch_without_a_gpu_says_so(tmp_path):
    for device in ("cuda", "cuda:1"):
        ended = launched(tmp_path, "--device", device)
        assert ended.returncode == 2, ended.stderr
        assert f"--device {device}" in ended.stderr and "everstep devices" in ended.stderr
    assert "sees ['', ':4096:8']" in launched(tmp_path, "--device", "cpu").stdout
