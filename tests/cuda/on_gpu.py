#!/usr/bin/env python3
"""Everything that takes a GPU, in one run of ten minutes at most, with a short table last.

    tests/cuda/pack.sh                                 # where there is Rust
    tests/cuda/on_gpu.py --binaries target/on-gpu      # where there is a GPU, and PyTorch

Every operation against the f64 reference; the loss beside the CPU's; the state hash of 1, 2 and 4
workers that share the GPU; the time of a pass by kind of operation; and the tokens per second of a
GPT of GPT-2's size beside PyTorch's, eager and compiled. A part that fails, or takes too long, does
not keep the others from running: the table says why, and the exit code that there is one.
"""
import argparse
import json
import pathlib
import re
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
PATIENCE_S = 120
WARM_UP = 5
# What losses of the end are compared of.
LAST = 10


class Runs:
    """Runs the program in a folder of its own."""

    def __init__(self, binaries: pathlib.Path, folder: pathlib.Path):
        self.everstep, self.folder, self.count = binaries / "everstep", folder, 0

    def train(self, model: dict, device: str, workers: int, **settings) -> tuple[dict, list[dict]]:
        """The report of a run, and its lines of metrics."""
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
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        if ended.returncode != 0:
            raise RuntimeError(ended.stderr[-2000:])
        lines = (place / "run" / "metrics.jsonl").read_text().splitlines()
        return json.loads((place / "report.json").read_text()), [json.loads(it) for it in lines]


def toml(sections: dict) -> str:
    value = lambda it: json.dumps(it)
    return "".join(f"[{name}]\n" + "".join(f"{key} = {value(it)}\n" for key, it in keys.items())
                   for name, keys in sections.items())


def operations(binaries: pathlib.Path) -> str:
    ended = subprocess.run([binaries / "gpu-operations", "--test-threads", "4"],
                           capture_output=True, text=True, timeout=PATIENCE_S)
    said = ended.stdout + ended.stderr
    if ended.returncode != 0 or "SKIPPED" in said:
        raise RuntimeError(said[-4000:])
    return re.search(r"test result: (.*? failed)", said).group(1)


def stages(binaries: pathlib.Path) -> str:
    """Forward and backward by kind of operation, and copies."""
    ended = subprocess.run([binaries / "gpu-stages"], capture_output=True, text=True,
                           timeout=PATIENCE_S)
    if ended.returncode != 0:
        raise RuntimeError(ended.stderr[-2000:])
    return "of a micro-batch, 12 x 768, bf16\n" + ended.stdout.rstrip()


def hashes(runs: Runs, precision: str) -> str:
    model = {**SMALL, "precision": precision}
    found = [runs.train(model, "cuda", workers)[0]["state_hash"] for workers in (1, 2, 4)]
    if len(set(found)) != 1:
        raise RuntimeError(f"error: other bits: {found}")
    return f"1, 2 and 4 workers: {found[0][:16]}"


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


def the_gpu(binaries: pathlib.Path) -> str:
    listed = json.loads(subprocess.check_output([binaries / "everstep", "devices", "--json"]))
    if not listed["gpus"]:
        raise RuntimeError(f"error: {listed['no_gpus']}")
    return f"{listed['gpus'][0]['name']}, {listed['gpus'][0]['architecture']}"


def reason(error: BaseException) -> str:
    """The line that says what was wrong: cargo's tests panic, the program says why."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it took longer than {error.timeout:.0f} s"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = ("why:", "error:", "panicked", "SKIPPED", "FAILED", "nothing was measured")
    found = [line for word in telling for line in lines if word in line]
    return ((found or lines or [type(error).__name__])[0])[:160]


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__,
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--binaries", type=pathlib.Path, required=True)
    flags.add_argument("--without-speed", action="store_true", help="only what must be right")
    flags = flags.parse_args()
    binaries = flags.binaries.resolve()
    rows, failed = [], False
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(binaries, pathlib.Path(folder))
        parts = [("GPU", lambda: the_gpu(binaries)),
                 ("operations", lambda: operations(binaries)),
                 ("loss, f32", lambda: losses(runs, "f32", 1e-3)),
                 ("loss, bf16", lambda: losses(runs, "bf16", 3e-2)),
                 ("loss, fp16", lambda: losses(runs, "fp16", 5e-2)),
                 ("hash, f32", lambda: hashes(runs, "f32")),
                 ("hash, bf16", lambda: hashes(runs, "bf16")),
                 ("hash, fp16", lambda: hashes(runs, "fp16"))]
        if not flags.without_speed:
            parts += [("stages", lambda: stages(binaries)),
                      ("12 x 768, bf16", lambda: speed(runs)),
                      ("PyTorch, eager", lambda: f"{peer(False):,.0f} tokens/s"),
                      ("PyTorch, compiled", lambda: f"{peer(True):,.0f} tokens/s")]
        for name, part in parts:
            began = time.perf_counter()
            try:
                said = part()
            except (Exception, SystemExit) as error:  # the other parts are worth their minutes
                said, failed = f"failed: {reason(error)}", True
                print(f"{name}: {error}", file=sys.stderr)
            print(f"{name}: {said} ({time.perf_counter() - began:.0f} s)", file=sys.stderr)
            rows.append((name, said))
    for name, said in rows:
        first, *more = said.splitlines() or [""]
        print("\n".join([f"{name:<20}{first}", *(f"{'':<20}{line}" for line in more)]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
