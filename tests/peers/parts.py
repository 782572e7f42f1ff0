"""What measure.py measures: parts, each a list of trials with one job a side.

A job takes the place where programs are and returns what it found, with the command that it ran.
"""
import functools
import json
import re
import shutil
import time
from dataclasses import dataclass, field
from typing import Callable, Dict, List

# Steps or turns before those that count, of everybody.
WARM_UP = 3


class Failed(Exception):
    """A program failed: which, and what it said."""


@dataclass(frozen=True)
class Gpt:
    """A GPT with a vocabulary of 256 and a tied head, as `gptm.py` has it."""

    layers: int
    width: int
    heads: int
    context: int
    micro_batch: int = 4

    @property
    def name(self) -> str:
        return f"{self.layers} x {self.width}"

    def config(self, place, data_shards: int):
        """The file of a run; nothing is held out, since only steps are looked at."""
        path = place.file(f"gpt-{self.layers}x{self.width}-{data_shards}.toml")
        path.write_text(
            f'[model]\nkind = "gpt"\nlayers = {self.layers}\nwidth = {self.width}\n'
            f"heads = {self.heads}\ncontext = {self.context}\n[data]\nvalidation = 0.0\n"
            f"[batch]\ndata_shards = {data_shards}\nmicro_batch = {self.micro_batch}\n"
            "[optimizer]\nkind = \"adamw\"\nclip_norm = 1.0\n")
        return path

    def flags(self) -> list:
        """As the peers' scripts want it."""
        shape = {"layers": self.layers, "width": self.width, "heads": self.heads,
                 "context": self.context, "micro-batch": self.micro_batch}
        return [word for name, value in shape.items() for word in (f"--{name}", value)]


SMALL = Gpt(layers=4, width=128, heads=4, context=128)
LARGE = Gpt(layers=6, width=384, heads=6, context=256)


@dataclass(frozen=True)
class Trial:
    """What is measured in turn by each side, and under which labels."""

    labels: dict
    sides: Dict[str, Callable]


@dataclass(frozen=True)
class Part:
    name: str
    rounds: int
    trials: List[Trial] = field(default_factory=list)


def train(place, gpt: Gpt, workers: int, data_shards: int, steps: int, *more,
          threads: int = 1) -> tuple:
    """Trains; the lines of the committed steps and the report."""
    folder, report = place.file("run"), place.file("report.json")
    shutil.rmtree(folder, ignore_errors=True)
    config = gpt.config(place, data_shards)
    place.everstep("train", "--config", config, "--workers", workers, "--threads", threads,
                   "--steps", steps, "--dir", folder, "--report", report, *more)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], json.loads(report.read_text())


def rounded(figures):
    """Three digits after the point: more is noise."""
    if isinstance(figures, dict):
        return {name: rounded(value) for name, value in figures.items()}
    return round(figures, 3) if isinstance(figures, float) else figures


# steps: tokens per second of whole training steps, beside PyTorch DDP


def our_steps(place, gpt: Gpt, workers: int, data_shards: int, steps: int,
              threads: int = 1) -> dict:
    lines, _ = train(place, gpt, workers, data_shards, WARM_UP + steps, threads=threads)
    taken = [round(1e3 * line["seconds"], 2) for line in lines[WARM_UP:]]
    return {"step_tokens": lines[-1]["tokens"], "step_ms": taken}


def ddp_steps(place, gpt: Gpt, workers: int, data_shards: int, steps: int) -> dict:
    """The times of the steps, and the peaks of the ranks' memory."""
    return place.peer("ddp_gpt.py", "--workers", workers, "--accumulate", data_shards // workers,
                      "--warm-up", WARM_UP, "--steps", steps, *gpt.flags())


def steps(gpt: Gpt, steps: int) -> Part:
    # One data shard is what one rank computes in a step; a single worker has two of them.
    trials = [
        Trial({"model": gpt.name, "workers": workers, "data_shards": data_shards},
              both(our_steps, ddp_steps, gpt, workers, data_shards, steps))
        for workers, data_shards in [(1, 2), (2, 2), (4, 4)]
    ]
    return Part(f"steps-{gpt.layers}x{gpt.width}", 5, trials)


# threads: one worker of two threads beside two ranks, each side with two data shards


def our_threads(place, gpt: Gpt, steps: int) -> dict:
    return our_steps(place, gpt, 1, 2, steps, threads=2)


def ddp_ranks(place, gpt: Gpt, steps: int) -> dict:
    return ddp_steps(place, gpt, 2, 2, steps)


def threads() -> Part:
    trials = [
        Trial({"model": gpt.name, "threads": 2}, both(our_threads, ddp_ranks, gpt, steps))
        for gpt, steps in [(SMALL, 30), (LARGE, 9)]
    ]
    return Part("threads", 5, trials)


# pytorch: the same steps with a model of PyTorch on both sides, beside a plain loop, DDP, torchft


def our_pytorch(place, gpt: Gpt, workers: int, data_shards: int, steps: int) -> dict:
    folder = place.file("launched")
    shutil.rmtree(folder, ignore_errors=True)
    place.package("launch", "--workers", workers, "--dir", folder,
                  place.script("everstep_gpt.py"), "--data-shards", data_shards,
                  "--steps", WARM_UP + steps, *gpt.flags())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    report = json.loads((folder / "report.json").read_text())
    return {"step_tokens": data_shards * gpt.micro_batch * gpt.context,
            "step_ms": [round(1e3 * line["seconds"], 2) for line in lines[WARM_UP:]],
            "peak_rss_bytes": [worker["peak_rss_bytes"] for worker in report["workers"]]}


def torchft_steps(place, gpt: Gpt, workers: int, steps: int) -> dict:
    return place.peer("torchft_gpt.py", "--workers", workers, "--warm-up", WARM_UP,
                      "--steps", steps, *gpt.flags())


def pytorch(gpt: Gpt, steps: int) -> Part:
    """Of two data shards. DDP of one worker is the plain loop."""
    trials = []
    for workers in (1, 2):
        sides = both(our_pytorch, ddp_steps, gpt, workers, 2, steps)
        if workers > 1:
            sides["torchft"] = functools.partial(
                torchft_steps, gpt=gpt, workers=workers, steps=steps)
        trials.append(Trial({"model": gpt.name, "workers": workers}, sides))
    return Part(f"pytorch-{gpt.layers}x{gpt.width}", 7, trials)


# all-reduce: the exchange of a step, beside Gloo over plain TCP


def our_all_reduce(place, workers: int, mb: int, iterations: int) -> dict:
    command = ["bench", "all-reduce", "--json", "--workers", workers, "--mb", mb,
               "--iterations", iterations]
    found = json.loads(place.everstep(*command))
    # A run of its own: its traces cost time, which the whole step is not to pay.
    found["exchange_ms"] = json.loads(place.everstep(*command, "--stages"))["exchange_ms"]
    return rounded(found)


def gloo_all_reduce(place, workers: int, mb: int, iterations: int) -> dict:
    return rounded(place.peer("gloo_all_reduce.py", "--workers", workers, "--mb", mb,
                              "--warm-up", WARM_UP, "--iterations", iterations))


def all_reduce() -> Part:
    trials = [
        Trial({"workers": workers, "mb": mb},
              both(our_all_reduce, gloo_all_reduce, workers, mb, iterations))
        for mb, iterations in [(16, 30), (256, 8)]
        for workers in [2, 4]
    ]
    return Part("all-reduce", 7, trials)


# stages: where the time of a step goes


def our_stages(place, gpt: Gpt, workers: int) -> dict:
    found = json.loads(place.everstep(
        "bench", "stages", "--json", "--config", gpt.config(place, workers),
        "--workers", workers, "--steps", 9))
    return {name: rounded(found[name]) for name in
            ["parameters", "step_ms", "stages_ms", "rest_ms", "exposed_ms"]}


def stages() -> Part:
    widths = {width: Gpt(layers=6, width=width, heads=width // 64, context=256)
              for width in [128, 256, 384, 512]}
    by_workers = [(widths[384], workers) for workers in [1, 2, 3, 4]]
    by_width = [(widths[width], 2) for width in [128, 256, 512]]
    trials = [
        Trial({"model": gpt.name, "workers": workers},
              {"everstep": functools.partial(our_stages, gpt=gpt, workers=workers)})
        for gpt, workers in by_workers + by_width
    ]
    return Part("stages", 3, trials)


# start-up: from the command to the first committed step


def our_start_up(place) -> dict:
    folder = place.file("run")
    shutil.rmtree(folder, ignore_errors=True)
    start = time.time()
    place.everstep("train", "--steps", 1, "--dir", folder)
    with open(folder / "metrics.jsonl") as lines:
        first = json.loads(lines.readline())
    return {"first_commit_ms": round(first["unix_ms"] - 1e3 * start, 1),
            "first_step_ms": round(1e3 * first["seconds"], 1)}


def start_up() -> Part:
    return Part("start-up", 15, [Trial({"workers": 2}, {"everstep": our_start_up})])


# memory: the peaks of processes, beside the formula and a DDP rank


def our_memory(place, gpt: Gpt, workers: int) -> dict:
    # The text is on top of the formula, in each process: a short one is next to nothing.
    text = place.file("text")
    text.write_bytes(bytes(32 + (i * i + i // 7) % 95 for i in range(1 << 16)))
    config = gpt.config(place, 4)
    dry_run = place.everstep("train", "--config", config, "--workers", workers,
                             "--threads", 1, "--data", text, "--dry-run")
    _, report = train(place, gpt, workers, 4, WARM_UP, "--data", text)
    return {**predicted(dry_run),
            "peak_rss_bytes": [worker["peak_rss_bytes"] for worker in report["workers"]]}


def predicted(dry_run: str) -> dict:
    """Parameters, and the formula's parts in bytes, of what a dry run prints."""
    table = dry_run.partition("\nmemory ")[2]
    sizes = {what: round(1e6 * float(mb)) for what, mb in
             re.findall(r"^  (\S.*?)  +([\d.]+) MB$", table, re.MULTILINE)}
    parameters = re.search(r"^parameters +(\d+)$", dry_run, re.MULTILINE)
    total = sizes.pop("together, about", None)
    if not parameters or not total:
        raise Failed(f"`everstep train --dry-run` prints no memory:\n{dry_run}")
    return {"parameters": int(parameters[1]), "predicted_bytes": total, "formula_bytes": sizes}


def ddp_memory(place, gpt: Gpt, workers: int) -> dict:
    found = place.peer("ddp_gpt.py", "--workers", workers, "--accumulate", 4 // workers,
                       "--warm-up", 0, "--steps", WARM_UP, *gpt.flags())
    return {"peak_rss_bytes": found["peak_rss_bytes"]}


def memory() -> Part:
    sizes = [SMALL, LARGE, Gpt(layers=6, width=768, heads=12, context=64, micro_batch=2)]
    trials = [
        Trial({"model": gpt.name, "context": gpt.context, "micro_batch": gpt.micro_batch,
               "workers": workers}, both(our_memory, ddp_memory, gpt, workers))
        for gpt in sizes for workers in [1, 2, 4]
    ]
    return Part("memory", 2, trials)


# passes: what one thread computes, beside PyTorch and the peak of a core


def our_passes(place) -> dict:
    # Neither with blocks that are computed again nor with more threads.
    line = r"^gpt (\d+ x \d+), \d+ sequences of \d+: (\d+) tokens/s$"
    rates = re.findall(line, place.bench("step"), re.MULTILINE)
    if not rates:
        raise Failed("`cargo bench -p everstep-kernels --bench step` prints no rate")
    peak = re.search(r"^peak: ([\d.]+) GFLOP/s$", place.bench("peak"), re.MULTILINE)
    return {"tokens_per_s": {model: float(rate) for model, rate in rates},
            "peak_gflops": float(peak[1]) if peak else None}


def torch_passes(place) -> dict:
    found = {gpt.name: place.peer("gpt_pass.py", *gpt.flags()) for gpt in [SMALL, LARGE]}
    return {"tokens_per_s": {model: of["tokens_per_s"] for model, of in found.items()},
            "gemm_gflops": max(of["gemm_gflops"] for of in found.values())}


def passes() -> Part:
    sides = {"everstep": our_passes, "peer": torch_passes}
    return Part("passes", 3, [Trial({}, sides)])


def both(ours: Callable, peer: Callable, *arguments) -> Dict[str, Callable]:
    return {"everstep": lambda place: ours(place, *arguments),
            "peer": lambda place: peer(place, *arguments)}


PARTS = {part.name: part for part in [
    steps(SMALL, 30), steps(LARGE, 9), threads(), pytorch(SMALL, 30), pytorch(LARGE, 9),
    all_reduce(), stages(), start_up(), memory(), passes(),
]}
