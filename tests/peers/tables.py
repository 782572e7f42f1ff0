"""Tables of what measure.py has written, in Markdown: nothing in the document is copied by hand.

Each part has a function from its measurements to a table; `fill` puts them into a document between
`<!-- measured: PART -->` and `<!-- end -->`.
"""
import re
from statistics import median
from typing import Callable, Dict, List, Tuple

# What a device waits for, and what it computes, of `everstep bench stages`.
EXPOSED = ["all_gather", "reduce_scatter", "commit"]
COMPUTE = ["forward", "backward"]
WORK = ["load", "data_shard", "update"]
# What `everstep bench all-reduce` calls the reduce_scatter and all_gather of its step.
EXCHANGE = "exchange_ms"


def of(measurements: List[dict], **labels) -> List[dict]:
    """Those that have all of these labels."""
    return [it for it in measurements if all(it.get(key) == labels[key] for key in labels)]


def distinct(measurements: List[dict], *keys: str) -> List[tuple]:
    """The labels that occur, in the order in which they were measured first."""
    return list(dict.fromkeys(tuple(it[key] for key in keys) for it in measurements))


def figures(measurements: List[dict], who: str, figure: Callable[[dict], float]) -> List[float]:
    """One figure a round."""
    return [figure(it) for it in sorted(of(measurements, who=who), key=lambda it: it["round"])]


def pairs(ours: List[float], peers: List[float]) -> List[float]:
    return [our / peer for our, peer in zip(ours, peers)]


def compare(measurements: List[dict], figure: Callable[[dict], float], form: str) -> List[str]:
    """Cells: the median of each side, their ratio, the least and greatest ratio of a round."""
    ours, peers = (figures(measurements, who, figure) for who in ("everstep", "peer"))
    ratios = pairs(ours, peers)
    return [format(median(ours), form), format(median(peers), form),
            f"**{median(ours) / median(peers):.2f}**", f"{min(ratios):.2f} to {max(ratios):.2f}"]


def tokens_per_second(measurement: dict) -> float:
    return measurement["step_tokens"] / (median(measurement["step_ms"]) / 1e3)


def steps(measurements: List[dict]) -> str:
    rows = [
        [model, workers, *compare(of(measurements, model=model, workers=workers),
                                  tokens_per_second, ",.0f")]
        for model, workers in distinct(measurements, "model", "workers")
    ]
    return table("model | workers | Everstep, tokens/s | DDP, tokens/s | ratio | of each round",
                 rows)


def threads(measurements: List[dict]) -> str:
    rows = [[model, threads, *compare(of(measurements, model=model), tokens_per_second, ",.0f")]
            for model, threads in distinct(measurements, "model", "threads")]
    return table("model | threads, and ranks | Everstep, tokens/s | DDP, tokens/s | ratio "
                 "| of each round", rows)


def pytorch(measurements: List[dict]) -> str:
    def peak(who: str, here: List[dict]) -> str:
        most = median(figures(here, who, lambda it: max(it["peak_rss_bytes"])))
        return f"{most / 1e6:,.0f}"

    rows = []
    for model, workers in distinct(measurements, "model", "workers"):
        here = of(measurements, model=model, workers=workers)
        ours, peers = (figures(here, who, tokens_per_second) for who in ("everstep", "torchft"))
        torchft = ["", ""]
        if peers:
            torchft = [f"{median(peers):,.0f}", f"**{median(ours) / median(peers):.2f}**"]
        rows.append([model, workers, *compare(here, tokens_per_second, ",.0f"), *torchft,
                     peak("everstep", here), peak("peer", here)])
    return table("model | workers | Everstep, tokens/s | DDP, tokens/s | ratio | of each round "
                 "| torchft, tokens/s | ratio | Everstep, MB | DDP rank, MB", rows)


def times(measurement: dict, key: str = "median_ms") -> float:
    """Milliseconds: the bench states its median, Gloo's script every time."""
    return measurement[key] if key in measurement else median(measurement["times_ms"])


def all_reduce(measurements: List[dict]) -> str:
    heads = "MB | workers | Everstep, ms | Gloo, ms | ratio | of each round " \
            "| without updates, votes and commits, at least, ms | ratio "
    rows = []
    for mb, workers in distinct(measurements, "mb", "workers"):
        both = of(measurements, mb=mb, workers=workers)
        row = [mb, workers, *compare(both, times, ".1f")]
        cells = compare(both, lambda it: times(it, EXCHANGE), ".1f")
        row += [cells[0], cells[2]]
        cpu = compare(both, lambda it: it["cpu_seconds_per_gb"], ".2f")
        rows.append([*row, *cpu[:3]])
    return table(heads + "| Everstep, CPU s/GB | Gloo, CPU s/GB | ratio", rows)


def stage_medians(measurements: List[dict]) -> Dict[str, float]:
    """Milliseconds of a step by what it is spent on, each the median over rounds."""
    def middle(figure: Callable[[dict], float]) -> float:
        return median(figures(measurements, "everstep", figure))

    stages = {stage: middle(lambda it: it["stages_ms"][stage])
              for stage in [*COMPUTE, *WORK, *EXPOSED]}
    return {**stages, "rest": middle(lambda it: it["rest_ms"]),
            "exposed": middle(lambda it: it["exposed_ms"]),
            "step": middle(lambda it: it["step_ms"])}


def stages(measurements: List[dict]) -> str:
    rows = []
    for model, workers in distinct(measurements, "model", "workers"):
        here = of(measurements, model=model, workers=workers)
        took = stage_medians(here)
        shown = ["step", *COMPUTE, *WORK, *EXPOSED, "rest"]
        rows.append([model, f"{here[0]['parameters'] / 1e6:.1f} M", workers,
                     *(f"{took[stage]:.1f}" for stage in shown),
                     f"{100 * took['exposed'] / took['step']:.1f} %"])
    return table("model | parameters | workers | step, ms | forward | backward | load | data_shard "
                 "| update | all_gather | reduce_scatter | commit | rest | exposed", rows)


def start_up(measurements: List[dict]) -> str:
    took = figures(measurements, "everstep", lambda it: it["first_commit_ms"] / 1e3)
    step = median(figures(measurements, "everstep", lambda it: it["first_step_ms"] / 1e3))
    row = [len(took), f"**{median(took):.2f} s**", f"{min(took):.2f} s", f"{max(took):.2f} s",
           f"{step:.2f} s"]
    return table("runs | median | shortest | longest | of which the first step (median)", [row])


def memory(measurements: List[dict]) -> str:
    rows = []
    for model, workers in distinct(measurements, "model", "workers"):
        here = of(measurements, model=model, workers=workers)
        first = of(here, who="everstep")[0]
        most, least = (median(figures(here, "everstep", lambda it: pick(it["peak_rss_bytes"])))
                       for pick in (max, min))
        ddp = median(figures(here, "peer", lambda it: max(it["peak_rss_bytes"])))
        shape = f"{model}, {first['micro_batch']} x {first['context']}"
        rows.append([shape, f"{first['parameters'] / 1e6:.1f} M", workers,
                     f"{first['predicted_bytes'] / 1e6:,.0f}", f"{most / 1e6:,.0f}",
                     f"{least / 1e6:,.0f}", f"**{most / first['predicted_bytes']:.2f}**",
                     f"{ddp / 1e6:,.0f}"])
    return table("model, batch | parameters | workers | formula, MB | most, MB | least, MB "
                 "| most / formula | DDP rank, MB", rows)


def flops_per_token(layers: int, width: int, context: int) -> int:
    """Of a forward and backward pass: matrix products alone, and half of the causal scores."""
    return 6 * (12 * layers * width**2 + 256 * width) + 6 * layers * width * context


def passes(measurements: List[dict]) -> str:
    rows = []
    ours = figures(measurements, "everstep", lambda it: it["peak_gflops"] or 0)
    peak, gemm = median(ours), median(figures(measurements, "peer", lambda it: it["gemm_gflops"]))
    for model, context in [("4 x 128", 128), ("6 x 384", 256)]:
        cells = compare(measurements, lambda it: it["tokens_per_s"][model], ",.0f")
        layers, width = map(int, model.split(" x "))
        gflop = flops_per_token(layers, width, context) / 1e9
        shares = []
        for who in ("everstep", "peer"):
            rate = median(figures(measurements, who, lambda it: it["tokens_per_s"][model])) * gflop
            shares.append(f"{rate:.0f}" + (f" ({100 * rate / peak:.0f} %)" if peak else ""))
        rows.append([model, *cells, *shares])
    rates = table("model | Everstep, tokens/s | PyTorch, tokens/s | ratio | of each round "
                  "| Everstep, GFLOP/s | PyTorch, GFLOP/s", rows)
    share = f", {100 * gemm / peak:.0f} % of it" if peak else ""
    core = f"One core at most: {peak:.0f} GFLOP/s. " if peak else ""
    product = f"MKL's product of matrices of 1,024 x 1,024: {gemm:.0f} GFLOP/s{share}."
    return f"{rates}\n\n{core}{product}"


def provenance(measured: dict) -> str:
    rows = []
    for name, held in measured.items():
        machine, versions = held["machine"], held["versions"]
        rounds = max(it["round"] for it in held["measurements"])
        where = (f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_gb']:.0f} GB, "
                 f"Linux {machine['kernel']}; PyTorch {versions['torch']}")
        rows.append([f"`{held['command']}`", rounds, held["measured_at"], f"`{held['commit']}`",
                     where])
    return table("command | rounds | when | commit | where", rows)


def table(heads: str, rows: List[list]) -> str:
    names = [name.strip() for name in heads.split("|")]
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


TABLES = {"steps-4x128": steps, "steps-6x384": steps, "threads": threads, "pytorch-4x128": pytorch,
          "pytorch-6x384": pytorch, "all-reduce": all_reduce,
          "stages": stages, "start-up": start_up, "memory": memory, "passes": passes}


def render(measured: dict) -> Dict[str, str]:
    """All tables by name, of the parts that were measured."""
    held = {name: TABLES[name](part["measurements"]) for name, part in measured.items()}
    return {**held, "provenance": provenance(measured)}


def fill(document: str, tables: Dict[str, str]) -> Tuple[str, List[str]]:
    """The document with these tables in their places, and the names that have no place."""
    missing = []
    for name, text in tables.items():
        place = re.compile(rf"(<!-- measured: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        document, found = place.subn(lambda at: f"{at[1]}{text}\n{at[2]}", document)
        missing += [] if found == 1 else [name]
    return document, missing
