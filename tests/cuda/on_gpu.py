#!/usr/bin/env python3
"""Everything that takes a GPU, in one run of a few minutes, with a table that grows as it goes.

    tests/cuda/pack.sh                                 # where there is Rust
    tests/cuda/on_gpu.py --binaries target/on-gpu      # where there is a GPU, and PyTorch

The libraries of CUDA that are found; every operation against the f64 reference; the time of a pass
by kind of operation; the tokens per second of a GPT of GPT-2's size beside PyTorch's, eager and
compiled; the loss beside the CPU's; the state hash of 1, 2 and 4 workers that share the GPU, and of
three of which one is killed; errors in words. A part that fails, or takes too long, does not keep
the others from running: the table says why, and the exit code that there is one. Parts for which no
time is left say so.
"""
import argparse
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

TREE = pathlib.Path(__file__).resolve().parents[2]
# GPT-2's smallest, with bytes for tokens.
LARGE = {"layers": 12, "heads": 12, "width": 768, "context": 1024}
SMALL = {"layers": 4, "heads": 4, "width": 128, "context": 128}
MICRO_BATCH = 8
STEPS = 25
# A part that takes longer has failed: the others want their minutes too.
PART_TIMEOUT_S = 100
WARM_UP = 5
# What losses of the end are compared of.
LAST = 10
# CUDA's libraries, by the names by which Everstep opens them, and what tells their versions.
LIBRARIES = {
    "libnvrtc.so.13": "a, b = ctypes.c_int(), ctypes.c_int(); "
                      "library.nvrtcVersion(ctypes.byref(a), ctypes.byref(b)); "
                      "print(f'{a.value}.{b.value}')",
    "libcublasLt.so.13": "library.cublasLtGetVersion.restype = ctypes.c_size_t; "
                         "print(library.cublasLtGetVersion())",
    "libnvidia-ml.so.1": "print('there')",
}


class Clock:
    """What is left of the time of the whole run."""

    def __init__(self, seconds: float):
        self.until = time.monotonic() + seconds

    def left(self) -> float:
        return self.until - time.monotonic()

    def timeout(self) -> float:
        """The longest that the next process may take."""
        return max(1.0, min(PART_TIMEOUT_S, self.left()))


class Runs:
    """Runs the program in a folder of its own."""

    def __init__(self, binaries: pathlib.Path, folder: pathlib.Path, clock: Clock):
        self.everstep, self.folder, self.clock = binaries / "everstep", folder, clock
        self.count = 0

    def prepared(self, model: dict, device: str, workers: int,
                 **settings) -> tuple[list, pathlib.Path]:
        """The command of a run, and its folder."""
        self.count += 1
        place = self.folder / f"run-{self.count}"
        place.mkdir()
        sections = {"run": {"steps": settings.pop("steps", 30)}, "model": model,
                    "data": {"path": str(TREE / "kernels")},
                    "batch": {"data_shards": settings.pop("data_shards", 4),
                              "micro_batch": settings.pop("micro_batch", 4)}}
        (place / "run.toml").write_text(toml(sections))
        command = [self.everstep, "train", "--config", place / "run.toml", "--device", device,
                   "--workers", str(workers), "--dir", place / "run",
                   "--report", place / "report.json"]
        return command, place

    def train(self, *model: object, **settings) -> tuple[dict, list[dict]]:
        """The report of a run, and its lines of metrics."""
        command, place = self.prepared(*model, **settings)
        checked(command, self.clock.timeout())
        return json.loads((place / "report.json").read_text()), metrics(place)

    def train_with_a_kill(self, *model: object, **settings) -> dict:
        """The report of a run of which one worker is killed after 30 steps."""
        command, place = self.prepared(*model, **settings)
        with open(place / "stderr", "w") as stderr:
            launcher = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr)
        until = time.monotonic() + self.clock.timeout()
        killed = False
        while launcher.poll() is None:
            if time.monotonic() > until:
                launcher.kill()
                raise subprocess.TimeoutExpired(command, PART_TIMEOUT_S)
            if not killed and len(metrics(place)) >= 30:
                os.kill(workers_of(launcher.pid)[-1], signal.SIGKILL)
                killed = True
            time.sleep(0.01)
        if launcher.returncode != 0 or not killed:
            raise RuntimeError((place / "stderr").read_text()[-2000:] or "error: nobody was killed")
        return json.loads((place / "report.json").read_text())


def checked(command: list, timeout: float) -> str:
    """What a command printed, on either stream."""
    ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    if ended.returncode != 0:
        raise RuntimeError((ended.stdout + ended.stderr)[-4000:])
    return ended.stdout


def metrics(place: pathlib.Path) -> list[dict]:
    path = place / "run" / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def workers_of(launcher: int) -> list[int]:
    """The worker processes that a launcher has started, oldest first."""
    children = pathlib.Path(f"/proc/{launcher}/task").glob("*/children")
    pids = sorted(int(pid) for found in children for pid in found.read_text().split())
    command = lambda pid: pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return [pid for pid in pids if b"worker" in command(pid)]


def toml(sections: dict) -> str:
    value = lambda it: json.dumps(it)
    return "".join(f"[{name}]\n" + "".join(f"{key} = {value(it)}\n" for key, it in keys.items())
                   for name, keys in sections.items())


def find_libraries() -> None:
    """Puts the folders of CUDA's libraries on the path of all processes that this one starts.
    PyTorch finds its own copies by itself, and nobody else does."""
    folders = [pathlib.Path(folder) for folder in
               [*pathlib.Path("/usr/local").glob("cuda*/lib64"),
                *pathlib.Path("/usr/local").glob("cuda*/targets/x86_64-linux/lib")]]
    for site in sys.path:
        folders += pathlib.Path(site).glob("nvidia/*/lib")
    telling = [name for name in LIBRARIES if "nvidia" not in name]
    wanted = [str(it) for it in folders if any((it / name).exists() for name in telling)]
    known = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, [*known, *dict.fromkeys(wanted)]))


def libraries(clock: Clock) -> str:
    said = []
    for name, version in LIBRARIES.items():
        program = f"import ctypes; library = ctypes.CDLL('{name}'); {version}"
        found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                               timeout=clock.timeout())
        said.append(f"{name} {(found.stdout + found.stderr).strip().splitlines()[-1]}")
        if found.returncode != 0:
            raise RuntimeError(f"error: {said[-1]}")
    return ", ".join(said)


def operations(binaries: pathlib.Path, clock: Clock) -> str:
    """All tests in one process. If one fails, each that failed once more in a process of its own:
    an illegal access fails all later calls of its process."""
    tests = binaries / "gpu-operations"
    ended = subprocess.run([tests, "--test-threads", "4"], capture_output=True, text=True,
                           timeout=clock.timeout())
    said = ended.stdout + ended.stderr
    if "SKIPPED" in said:
        raise RuntimeError(said[-4000:])
    if ended.returncode != 0:
        failed = []
        for name in sorted(set(re.findall(r"^test (\S+) \.\.\. FAILED", said, re.MULTILINE))):
            alone = subprocess.run([tests, "--exact", name, "--test-threads", "1"],
                                   capture_output=True, text=True, timeout=clock.timeout())
            if alone.returncode != 0:
                print(alone.stdout[-3000:] + alone.stderr[-1000:], file=sys.stderr)
                failed.append(f"{name}: {reason(RuntimeError(alone.stdout + alone.stderr))}")
        raise RuntimeError("FAILED " + "\n".join(failed or [said[-4000:]]))
    return re.search(r"test result: (.*? failed)", said).group(1)


def stages(binaries: pathlib.Path, clock: Clock) -> str:
    """Forward and backward by kind of operation."""
    said = checked([binaries / "gpu-stages"], clock.timeout())
    return "of a micro-batch, 12 x 768, bf16\n" + said.rstrip()


def hashes(runs: Runs, precision: str) -> str:
    model = {**SMALL, "precision": precision}
    found = [runs.train(model, "cuda", workers)[0]["state_hash"] for workers in (1, 2, 4)]
    if len(set(found)) != 1:
        raise RuntimeError(f"error: other bits: {found}")
    return f"1, 2 and 4 workers: {found[0][:16]}"


def killed(runs: Runs) -> str:
    """The hash of three workers, one of which is killed."""
    model, steps = {**SMALL, "precision": "bf16"}, 200
    undisturbed = runs.train(model, "cuda:0", 1, steps=steps)[0]
    report = runs.train_with_a_kill(model, "cuda:0", 3, steps=steps)
    if report["state_hash"] != undisturbed["state_hash"]:
        raise RuntimeError(f"error: other bits: {report['state_hash']}")
    lost = [it for it in report["generations"] if it["cause"] == "lost"]
    if report["steps_lost"] != 0 or not lost:
        raise RuntimeError(f"error: {report['generations']}")
    return f"one of 3 workers killed at step {lost[0]['at_step']}: no step lost, equal"


def curves(runs: Runs, precision: str) -> list[tuple[float, float]]:
    """The losses on the GPU, beside the CPU's in f32, of the steps that were not skipped."""
    def lines(device: str, precision: str) -> list[dict]:
        return runs.train({**SMALL, "precision": precision}, device, 1, steps=60)[1]
    pairs = zip(lines("cuda", precision), lines("cpu", "f32"), strict=True)
    return [(found["loss"], expected["loss"]) for found, expected in pairs
            if found["decision"] != "skip"]


def losses(runs: Runs, precision: str, most: float) -> str:
    pairs = curves(runs, precision)
    if precision == "fp16":
        # While the loss scale is found, steps are skipped, and those after them compute with other
        # parameters than the CPU's: what it comes to is compared.
        if len(pairs) < 60 - LAST:
            raise RuntimeError(f"error: {60 - len(pairs)} of 60 steps were skipped")
        pairs = [tuple(statistics.fmean(losses) for losses in zip(*pairs[-LAST:]))]
    apart = max(abs(found - expected) / expected for found, expected in pairs)
    if not apart <= most:
        raise RuntimeError(f"error: {apart:.1e} from the CPU's")
    return f"within {apart:.1e} of the CPU's"


def speed(runs: Runs) -> str:
    """Tokens per second of one worker, and of the whole run the share of the GPU's peak."""
    report, lines = runs.train({**LARGE, "precision": "bf16"}, "cuda", 1, steps=STEPS,
                               data_shards=1, micro_batch=MICRO_BATCH)
    found = statistics.median(line["tokens"] / line["seconds"] for line in lines[WARM_UP:])
    share = report["model_flops_utilization"]
    peak = "the peak is not known" if share is None else f"{100 * share:.1f} % of the peak"
    return f"{found:,.0f} tokens/s, {peak}"


def step_stages(binaries: pathlib.Path, runs: Runs) -> str:
    """Where the time of a step of the large model goes, on the host."""
    _, place = runs.prepared({**LARGE, "precision": "bf16"}, "cuda", 1, steps=STEPS,
                             data_shards=1, micro_batch=MICRO_BATCH)
    command = [runs.everstep, "bench", "stages", "--config", place / "run.toml", "--workers", "1",
               "--device", "cuda"]
    return "of a step\n" + checked(command, runs.clock.timeout()).rstrip()


def peer(compiled: bool) -> float:
    """Tokens per second of the same model in PyTorch."""
    import torch
    sys.path.insert(0, str(TREE / "tests" / "peers"))
    import gptm
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = gptm.GPT(T=LARGE["context"], L=LARGE["layers"], d=LARGE["width"], h=LARGE["heads"])
    model = model.cuda()
    net = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    shape = (MICRO_BATCH, LARGE["context"])
    x, y = (torch.randint(0, 256, shape, device="cuda") for _ in range(2))
    seconds = []
    for _ in range(WARM_UP + STEPS):
        start = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = net(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return MICRO_BATCH * LARGE["context"] / statistics.median(seconds[WARM_UP:])


def beside(compiled: bool, clock: Clock) -> str:
    """In a process of its own, which may be given up."""
    command = [sys.executable, __file__, "--peer", "compiled" if compiled else "eager"]
    return f"{float(checked(command, clock.timeout())):,.0f} tokens/s"


def the_gpu(binaries: pathlib.Path, clock: Clock) -> str:
    listed = json.loads(checked([binaries / "everstep", "devices", "--json"], clock.timeout()))
    if not listed["gpus"]:
        raise RuntimeError(f"error: {listed['no_gpus']}")
    print(json.dumps(listed, indent=1), file=sys.stderr)
    return f"{listed['gpus'][0]['name']}, {listed['gpus'][0]['architecture']}"


def refusals(runs: Runs) -> str:
    """A GPU that is not there, and a model that no GPU holds: exit codes and words."""
    said = []
    for device, micro_batch, words in [("cuda:9", 1, "9"), ("cuda:0", 4096, "memory")]:
        command, _ = runs.prepared({**LARGE, "precision": "bf16"}, device, 1, steps=1,
                                   data_shards=1, micro_batch=micro_batch)
        ended = subprocess.run(command, capture_output=True, text=True,
                               timeout=runs.clock.timeout())
        if ended.returncode == 0 or words not in ended.stderr or "panicked" in ended.stderr:
            raise RuntimeError(f"error: exit code {ended.returncode}: {ended.stderr[-2000:]}")
        line = next(line for line in ended.stderr.splitlines() if words in line)
        said.append(f"exit code {ended.returncode}: {line.strip()[:200]}")
    return "in words\n" + "\n".join(said)


def reason(error: BaseException) -> str:
    """The line that says what was wrong: cargo's tests panic, the program says why."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it took longer than {error.timeout:.0f} s"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = ("why:", "error:", "panicked", "SKIPPED", "FAILED", "nothing was measured")
    found = [at for word in telling for at, line in enumerate(lines) if word in line]
    at = found[0] if found else 0
    # A panic says where, and the next line what.
    return " ".join(lines[at:at + 2])[:240] or type(error).__name__


def table(name: str, said: str) -> str:
    first, *more = said.splitlines() or [""]
    return "\n".join([f"{name:<20}{first}", *(f"{'':<20}{line}" for line in more)])


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__,
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--binaries", type=pathlib.Path)
    flags.add_argument("--seconds", type=float, default=540, help="for everything")
    flags.add_argument("--only", nargs="+", metavar="PART", help="these parts, by their names")
    flags.add_argument("--peer", choices=["eager", "compiled"], help=argparse.SUPPRESS)
    flags = flags.parse_args()
    if flags.peer:
        print(peer(flags.peer == "compiled"))
        return 0
    find_libraries()
    binaries, clock, failed = flags.binaries.resolve(), Clock(flags.seconds), False
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(binaries, pathlib.Path(folder), clock)
        parts = {"libraries": lambda: libraries(clock),
                 "GPU": lambda: the_gpu(binaries, clock),
                 "operations": lambda: operations(binaries, clock),
                 "stages": lambda: stages(binaries, clock),
                 "12 x 768, bf16": lambda: speed(runs),
                 "step": lambda: step_stages(binaries, runs),
                 "hash, bf16": lambda: hashes(runs, "bf16"),
                 "PyTorch, eager": lambda: beside(False, clock),
                 "PyTorch, compiled": lambda: beside(True, clock),
                 "loss, bf16": lambda: losses(runs, "bf16", 3e-2),
                 "hash, f32": lambda: hashes(runs, "f32"),
                 "killed": lambda: killed(runs),
                 "loss, f32": lambda: losses(runs, "f32", 1e-3),
                 "loss, fp16": lambda: losses(runs, "fp16", 5e-2),
                 "hash, fp16": lambda: hashes(runs, "fp16"),
                 "refusals": lambda: refusals(runs)}
        for name, part in parts.items():
            if flags.only and name not in flags.only:
                continue
            began = time.perf_counter()
            try:
                said = part() if clock.left() > 5 else "not tried: no time is left"
                failed |= said.startswith("not tried")
            except (Exception, SystemExit) as error:  # the other parts are worth their minutes
                said, failed = f"failed: {reason(error)}", True
                print(f"{name}: {error}", file=sys.stderr)
            print(f"{table(name, said)} ({time.perf_counter() - began:.0f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
