#!/usr/bin/env python3
"""What PyTorch models on a GPU take a real one for, in at most 150 s, with a table at the end.

    tests/cuda/torch_on_gpu.py --package FOLDER

FOLDER has the package: FOLDER/everstep/*.py and FOLDER/everstep/_everstep.abi3.so. The machine has an
NVIDIA GPU, and a PyTorch for CUDA in this Python. A part that fails, or takes too long, does not keep
the others from running: the table says why, what it printed is above the table, and the exit code is 1.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SCRIPT = HERE / "torch_gpt.py"
BUDGET_S = 150
#: No part takes longer than this.
PART_TIMEOUT_S = 70
WARM_UP = 5
CONTEXT, SHARDS, MICRO_BATCH = 1024, 4, 8
LARGE = ["--layers", "12", "--heads", "12", "--width", "768", "--context", str(CONTEXT), "--bf16",
         "--data-shards", str(SHARDS), "--micro-batch", str(MICRO_BATCH), "--steps", "20"]
#: How far the losses of f32 may be from the plain loop's, whose sums have another order.
MOST_APART = 1e-4


class Machine:
    """Starts processes, each in a folder of its own, and keeps to the time."""

    def __init__(self, package: pathlib.Path, folder: pathlib.Path):
        self.until = time.monotonic() + BUDGET_S
        self.folder = folder
        path = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")]))
        self.environment = {**os.environ, "PYTHONPATH": path, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}

    def left(self) -> float:
        return max(1.0, min(PART_TIMEOUT_S, self.until - time.monotonic()))

    def start(self, name: str, *command: str) -> tuple[subprocess.Popen, pathlib.Path]:
        place = self.folder / name
        place.mkdir()
        out = open(place / "out", "w")
        process = subprocess.Popen(
            [sys.executable, *command], stdout=out, stderr=subprocess.STDOUT, cwd=place,
            env=self.environment, start_new_session=True)
        return process, place

    def ended(self, process: subprocess.Popen, place: pathlib.Path) -> str:
        """What a process printed, which has ended well."""
        try:
            code = process.wait(self.left())
        except subprocess.TimeoutExpired:
            code = "none, it took too long"
            end(process)
        said = (place / "out").read_text()
        if code != 0:
            logs = [f"--- {it.name}\n{it.read_text()[-1500:]}" for it in place.glob("run/logs/worker-*")]
            raise RuntimeError("\n".join([f"{place.name}: exit code {code}", said[-3000:], *logs]))
        return said

    def plain(self, name: str, *flags: str) -> dict:
        return last_json(self.ended(*self.start(name, str(SCRIPT), *flags)))

    def launch(self, name: str, workers: int, *flags: str, more: tuple[str, ...] = ()):
        return self.start(
            name, "-m", "everstep", "launch", "--workers", str(workers), "--device", "cuda:0",
            "--dir", "run", "--report", "report.json", *more, str(SCRIPT), *flags)

    def trained(self, name: str, workers: int, *flags: str, more: tuple[str, ...] = ()) -> "Trained":
        process, place = self.launch(name, workers, *flags, more=more)
        return Trained(place, self.ended(process, place))


class Trained:
    """What a launch has left."""

    def __init__(self, place: pathlib.Path, said: str):
        self.said = said
        self.report = json.loads((place / "report.json").read_text())
        self.lines = metrics(place)
        self.hash = self.report["state_hash"]
        if self.report.get("bitwise") is not True:
            raise RuntimeError(f"{place.name}: bitwise is not true: {self.report.get('bitwise_reason')}")

    def tokens_per_second(self) -> float:
        seconds = statistics.median(line["seconds"] for line in self.lines[WARM_UP:])
        return SHARDS * MICRO_BATCH * CONTEXT / seconds


def end(process: subprocess.Popen) -> None:
    """Ends a process. A launcher ends its workers, too."""
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def metrics(place: pathlib.Path) -> list[dict]:
    path = place / "run" / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def last_json(said: str) -> dict:
    """The last line with JSON, after the name of a worker if it has one."""
    found = [line[line.index("{"):] for line in said.splitlines() if '": ' in line and "{" in line]
    if not found:
        raise RuntimeError(f"no line of JSON in:\n{said[-3000:]}")
    return json.loads(found[-1])


def the_gpu(machine: Machine) -> str:
    program = ("import torch; from everstep import device; "
               "print(device.name_of_gpu(torch.device('cuda:0')), '| CUDA', torch.version.cuda)")
    return machine.ended(*machine.start("gpu", "-c", program)).strip().splitlines()[-1]


def refusal(machine: Machine) -> str:
    process, place = machine.start(
        "refusal", "-m", "everstep", "launch", "--device", "cuda:9", str(SCRIPT))
    process.wait(machine.left())
    said = (place / "out").read_text()
    if process.returncode != 2 or "cuda:9" not in said:
        raise RuntimeError(f"exit code {process.returncode}: {said}")
    return " ".join(said.split())[:150]


def dry_run(machine: Machine) -> str:
    said = machine.ended(*machine.start(
        "dry-run", "-m", "everstep", "launch", "--dry-run", "--device", "cuda", str(SCRIPT)))
    telling = [line.strip() for line in said.splitlines() if "measured" in line]
    if not any("tensors" in line for line in telling):
        raise RuntimeError(f"nothing of the GPU in:\n{said}")
    return "; ".join(" ".join(line.split()) for line in telling)


def same_hash(machine: Machine, *flags: str) -> str:
    """The hash of one worker and of two that share the GPU."""
    name = "images" if "--images" in flags else "gpt"
    with concurrent.futures.ThreadPoolExecutor() as pool:
        runs = [pool.submit(machine.trained, f"{name}-{count}", count, *flags) for count in (1, 2)]
        one, two = (run.result() for run in runs)
    if one.hash != two.hash:
        raise RuntimeError(f"other bits: {one.hash} and {two.hash}")
    return f"equal: {one.hash[:16]}"


def losses(machine: Machine) -> str:
    """20 steps beside the plain loop's on the same GPU."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        run = pool.submit(machine.trained, "loss", 1)
        plain = machine.plain("loss-plain", "--plain", "deterministic")
        found = [line["loss"] for line in run.result().lines]
    pairs = list(zip(found, plain["losses"], strict=True))
    apart = max(abs(a - b) / b for a, b in pairs)
    words = f"{apart:.1e} apart at most, {pairs[0][0]:.4f} to {pairs[-1][0]:.4f}"
    if not apart <= MOST_APART:
        raise RuntimeError(f"{words}: {pairs}")
    return words


def killed(machine: Machine) -> str:
    """One of two workers is killed at step 20. The hash is that of one that was left alone."""
    flags = ("--steps", "60")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        alone = pool.submit(machine.trained, "alone", 1, *flags)
        gate = machine.folder / "gate"
        process, place = machine.launch("killed", 2, *flags, "--gate", str(gate))
        until = time.monotonic() + machine.left()
        while process.poll() is None and time.monotonic() < until and len(metrics(place)) < 19:
            time.sleep(0.02)
        victims = members(place)
        if len(victims) == 2:
            os.kill(victims[-1], signal.SIGKILL)
        gate.touch()
        disturbed = Trained(place, machine.ended(process, place))
        undisturbed = alone.result()
    if len(victims) != 2:
        raise RuntimeError(f"of two workers {len(victims)} took part at step 20: nobody was killed")
    if disturbed.hash != undisturbed.hash:
        raise RuntimeError(f"other bits: {disturbed.hash} and {undisturbed.hash}")
    return f"equal; steps lost: {disturbed.report.get('steps_lost')}"


def members(place: pathlib.Path) -> list[int]:
    """The process ids of the workers that take part."""
    views = json.loads((place / "run" / "cluster.json").read_text())["workers"]
    return [view["pid"] for view in views if view.get("pid") and view.get("rank") is not None]


def plain_speed(machine: Machine, kind: str) -> str:
    seconds = machine.plain(f"large-{kind}", *LARGE, "--plain", kind)["seconds"]
    return f"{SHARDS * MICRO_BATCH * CONTEXT / seconds:,.0f} tokens/s"


def speed(machine: Machine, workers: int) -> str:
    run = machine.trained(f"large-{workers}", workers, *LARGE, more=("--threads", "4"))
    told = last_json(run.said)
    turn = ", ".join(f"{name} {ms:.1f}" for name, ms in told["turn_ms"].items())
    commit = statistics.median(line["commit_seconds"] for line in run.lines[WARM_UP:])
    return (f"{run.tokens_per_second():,.0f} tokens/s (ms of a turn: {turn}; of a commit: "
            f"{1e3 * commit:.1f}; host {told['host_mb']} MB, GPU {told['gpu_mb']} MB)")


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__,
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--package", type=pathlib.Path, required=True,
                       help="the folder with the package everstep")
    package = flags.parse_args().package.resolve()
    if not (package / "everstep" / "_everstep.abi3.so").is_file():
        print(f"error: {package}/everstep/_everstep.abi3.so is not there", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(package, pathlib.Path(folder))
        together = [("GPU", the_gpu), ("1 and 2 workers", same_hash),
                    ("statistics, dropout", lambda it: same_hash(it, "--images", "--loaders", "1")),
                    ("losses", losses), ("a killed worker", killed), ("dry run", dry_run),
                    ("a GPU too many", refusal)]
        alone = [("PyTorch", lambda it: plain_speed(it, "usual")),
                 ("PyTorch, same bits", lambda it: plain_speed(it, "deterministic")),
                 ("Everstep, 1 worker", lambda it: speed(it, 1)),
                 ("Everstep, 2 workers", lambda it: speed(it, 2))]
        # What is compared may run side by side, and what is timed may not.
        with concurrent.futures.ThreadPoolExecutor(len(together)) as pool:
            under_way = [(name, pool.submit(part, machine)) for name, part in together]
            rows = [row(name, future.result) for name, future in under_way]
        rows += [row(name, lambda part=part: part(machine)) for name, part in alone]
    print("\n".join(f"{name:<21}{said}" for name, said, _ in rows))
    return 0 if all(is_well for *_, is_well in rows) else 1


def row(name: str, part) -> tuple[str, str, bool]:
    """A line of the table. Says at once what a part that fails has printed."""
    begun = time.monotonic()
    try:
        found = name, part(), True
    except Exception as error:
        print(f"=== {name}\n{error!r}" if not str(error) else f"=== {name}\n{error}", flush=True)
        found = name, f"FAILED: {type(error).__name__}, see above", False
    print(f"{name}: {found[1]} ({time.monotonic() - begun:.0f} s)", file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
