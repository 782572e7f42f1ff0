#!/usr/bin/env python3
"""Makes the plots and the tables of docs/performance.md of what measure.py has written.

    v/bin/python tests/peers/plot.py        # v: an environment with matplotlib

Plots are SVG files in docs/performance/; equal measurements make equal files.
"""
import argparse
import json
from pathlib import Path
from statistics import median

import tables

DOCS = Path(__file__).resolve().parents[2] / "docs"

try:
    import matplotlib
    matplotlib.use("svg")
    from matplotlib import pyplot
except ImportError:
    raise SystemExit(
        "plot.py: this Python has no matplotlib\n"
        "  next: VENV/bin/pip install matplotlib, and VENV/bin/python plot.py") from None

OURS, PEER, WAIT = "#1f5fa8", "#c9791c", "#b3372f"
# From the work to the waiting.
STAGES = {"forward": "#1f5fa8", "backward": "#6b9bd1", "update": "#4d8f5b", "data_shard": "#8fbf99",
          "load": "#cfe3d3", "rest": "#b9b9b9", "all_gather": "#8c2a24", "reduce_scatter": WAIT,
          "commit": "#e0958f"}
STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "everstep", "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"], "font.size": 10,
    "axes.titlesize": 10, "axes.spines.top": False, "axes.spines.right": False,
    "axes.axisbelow": True, "axes.grid": True, "axes.grid.axis": "y", "grid.color": "#e4e4e4",
    "legend.frameon": False, "legend.fontsize": 9, "figure.facecolor": "white",
    "savefig.facecolor": "white", "figure.constrained_layout.use": True,
}


def bars(axis, groups: list, names: tuple) -> None:
    """Bars side by side for each group: the median of a side, with its least and greatest; above
    them the ratio of the medians."""
    looks = [("everstep", names[0], OURS, -0.2), ("peer", names[1], PEER, 0.2)]
    for who, name, colour, offset in looks:
        found = [held[who] for _, held in groups]
        middle = [median(values) for values in found]
        reach = [[mid - min(values) for mid, values in zip(middle, found)],
                 [max(values) - mid for mid, values in zip(middle, found)]]
        places = [place + offset for place in range(len(groups))]
        axis.bar(places, middle, 0.38, color=colour, label=name)
        axis.errorbar(places, middle, reach, fmt="none", ecolor="#333333", elinewidth=0.8,
                      capsize=2)
    for place, (_, held) in enumerate(groups):
        ratio = median(held["everstep"]) / median(held["peer"])
        top = max(held["everstep"] + held["peer"])
        axis.annotate(f"{ratio:.2f}", (place, top), (0, 5), textcoords="offset points",
                      ha="center", fontsize=9, color="#333333")
    axis.set_xticks(range(len(groups)), [name for name, _ in groups])
    axis.margins(y=0.14)


def sides(measurements: list, figure) -> dict:
    return {who: tables.figures(measurements, who, figure) for who in ("everstep", "peer")}


def steps(measured: dict):
    shown = [name for name in ("steps-4x128", "steps-6x384") if name in measured]
    figure, axes = panels(len(shown))
    for axis, name in zip(axes, shown):
        held = measured[name]["measurements"]
        groups = [(workers, sides(tables.of(held, workers=workers), tables.tokens_per_second))
                  for (workers,) in tables.distinct(held, "workers")]
        bars(axis, groups, ("Everstep", "PyTorch DDP"))
        axis.set_title(f"GPT {held[0]['model']}")
        axis.set_xlabel("workers of one compute thread each")
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes[0].set_ylabel("tokens/s (more is better)")
    legend(figure, axes[0], "Everstep / DDP")
    return figure


def all_reduce(measured: dict):
    held = measured["all-reduce"]["measurements"]
    sizes = [mb for (mb,) in tables.distinct(held, "mb")]
    names = ("Everstep, encrypted, a whole step", "Gloo, plain TCP")
    figure, axes = panels(len(sizes) + 1)
    for axis, mb in zip(axes, sizes):
        here = tables.of(held, mb=mb)
        groups = [(workers, sides(tables.of(here, workers=workers), tables.times))
                  for (workers,) in tables.distinct(here, "workers")]
        bars(axis, groups, names)
        axis.set_title(f"{mb} MB")
        axis.set_xlabel("workers")
    groups = [(f"{mb}\n{workers}",
               sides(tables.of(held, mb=mb, workers=workers), lambda it: it["cpu_seconds_per_gb"]))
              for mb, workers in tables.distinct(held, "mb", "workers")]
    bars(axes[-1], groups, names)
    axes[-1].set_xlabel("MB, and workers")
    axes[-1].set_title("CPU")
    axes[-1].set_ylabel("CPU seconds for each GB sent")
    axes[0].set_ylabel("ms (less is better)")
    legend(figure, axes[0], "Everstep / Gloo")
    return figure


def legend(figure, axis, ratio: str) -> None:
    handles, names = axis.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=2,
                  title=f"figures above the bars: {ratio}", title_fontsize=9)


def stages(measured: dict):
    held = measured["stages"]["measurements"]
    by_workers = [it for it in held if it["model"] == "6 x 384"]
    by_size = sorted((it for it in held if it["workers"] == 2), key=lambda it: it["parameters"])
    figure, axes = panels(2)
    stack(axes[0], by_workers, lambda it: f"{it['workers']}")
    axes[0].set_title("GPT 6 x 384, a data shard for each worker")
    axes[0].set_xlabel("workers")
    stack(axes[1], by_size, lambda it: f"{it['parameters'] / 1e6:.1f} M\n{it['model']}")
    axes[1].set_title("2 workers")
    axes[1].set_xlabel("parameters")
    axes[0].set_ylabel("ms of a step")
    handles, names = axes[1].get_legend_handles_labels()
    figure.legend(handles[::-1], names[::-1], loc="outside right upper")
    return figure


def stack(axis, measurements: list, name) -> None:
    """A bar a group, of stages on top of each other, with the share that is exposed."""
    groups = {}
    for it in measurements:
        groups.setdefault(name(it), []).append(it)
    took = [tables.stage_medians(group) for group in groups.values()]
    base = [0.0] * len(took)
    for stage, colour in STAGES.items():
        heights = [max(times[stage], 0.0) for times in took]
        axis.bar(range(len(took)), heights, 0.6, bottom=base, color=colour, label=stage)
        base = [below + height for below, height in zip(base, heights)]
    for place, (times, top) in enumerate(zip(took, base)):
        axis.annotate(f"{100 * times['exposed'] / times['step']:.1f} % exposed", (place, top),
                      (0, 4), textcoords="offset points", ha="center", fontsize=8)
    axis.set_xticks(range(len(took)), groups)
    axis.set_xlim(-0.7, len(took) - 0.3)
    axis.margins(y=0.1)


def memory(measured: dict):
    held = measured["memory"]["measurements"]
    models = [model for (model,) in tables.distinct(held, "model")]
    figure, axes = panels(len(models))
    for axis, model in zip(axes, models):
        here = tables.of(held, model=model, who="everstep")
        workers = [number for (number,) in tables.distinct(here, "workers")]
        firsts = [tables.of(here, workers=number)[0] for number in workers]
        base = [0.0] * len(firsts)
        for part, colour in zip(firsts[0]["formula_bytes"], STAGES.values()):
            heights = [first["formula_bytes"][part] / 1e6 for first in firsts]
            axis.bar(range(len(firsts)), heights, 0.6, bottom=base, color=colour, label=part)
            base = [below + height for below, height in zip(base, heights)]
        for place, number in enumerate(workers):
            peaks = [peak / 1e6 for it in tables.of(here, workers=number)
                     for peak in it["peak_rss_bytes"]]
            label = "measured, each worker" if place == 0 else None
            axis.plot([place] * len(peaks), peaks, "_", color="black", markersize=22, label=label)
        axis.set_xticks(range(len(workers)), workers)
        axis.set_title(f"GPT {model}, {firsts[0]['parameters'] / 1e6:.1f} M")
        axis.set_xlabel("workers")
    axes[0].set_ylabel("MB of a worker")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles[::-1], names[::-1], loc="outside right upper")
    return figure


def panels(count: int):
    figure, axes = pyplot.subplots(1, count, figsize=(9.5, 3.8), squeeze=False)
    return figure, list(axes[0])


PLOTS = {"steps": steps, "all-reduce": all_reduce, "stages": stages, "memory": memory}


def main() -> None:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--measured", type=Path, default=DOCS / "performance/measured.json")
    flags.add_argument("--document", type=Path, default=DOCS / "performance.md")
    flags.add_argument("--png", action="store_true", help="PNG files, to look at, in place of SVG")
    flags = flags.parse_args()
    if not flags.measured.exists():
        raise SystemExit(f"plot.py: {flags.measured} is not there\n"
                         "  next: tests/peers/measure.py --help")
    measured = json.loads(flags.measured.read_text())
    folder = flags.measured.parent
    pyplot.rcParams.update(STYLE)
    for name, plot in PLOTS.items():
        if not any(part.startswith(name) for part in measured):
            continue
        figure = plot(measured)
        kind = "png" if flags.png else "svg"
        metadata = {} if flags.png else {"Date": None}
        figure.savefig(folder / f"{name}.{kind}", format=kind, dpi=120, metadata=metadata)
    document, missing = tables.fill(flags.document.read_text(), tables.render(measured))
    flags.document.write_text(document)
    if missing:
        raise SystemExit(f"plot.py: {flags.document} has no `<!-- measured: … -->` for "
                         f"{', '.join(missing)}")


if __name__ == "__main__":
    main()
