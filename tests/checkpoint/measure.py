#!/usr/bin/env python3
"""Measures what checkpoints are for, and what they cost, with real runs of the default model.

    cargo build --release
    tests/checkpoint/measure.py resumes [--kills 100]
    tests/checkpoint/measure.py restarts [--kills 100]
    tests/checkpoint/measure.py cost [--rounds 5] [--megabytes-per-second 126]

`resumes` kills all processes of a local cluster (SIGKILL) at random moments, again and again, and
resumes the run with another number of workers each time. It prints the time from the start of
`everstep resume` to the first new step. At the end the state hash must be that of a run that
nothing happened to.

`restarts` does the same to daemons, a coordinator and its workers, and starts them again in their
directories. The time begins with the start of the coordinator, and no command is given.

`cost` trains the same run with a checkpoint every five steps and without checkpoints, in turn, and
prints the ratio of the median steps and of the longest steps. It also prints what the steps beside
which a checkpoint is written take beyond the others, as a share of all. With
--megabytes-per-second the checkpoints go to a disk that writes no faster (Linux with cgroup
version 1, root).

Standard output is JSON, and what happens goes to standard error.
"""
import argparse
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from free_port import free_port

ROOT = Path(__file__).resolve().parents[2]
# Where a device's writes are limited: groups of processes, in version 1 of cgroups.
GROUPS = Path("/sys/fs/cgroup/blkio")

# How large the default text is.
DEFAULT_TEXT_BYTES = 32_000_000
# How many steps lie between two checkpoints.
EVERY = 5

T = TypeVar("T")


def main() -> None:
    arguments = flags().parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        cluster = Cluster(arguments.everstep.absolute(), Path(scratch))
        try:
            if arguments.what == "cost":
                result = cost(cluster, arguments)
            else:
                kind = Local if arguments.what == "resumes" else Daemons
                result = revivals(cluster, kind, arguments.kills, random.Random(arguments.seed))
        finally:
            cluster.end()
        json.dump(result, sys.stdout, indent=2)
        print()


def flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--everstep", type=Path, default=ROOT / "target/release/everstep")
    verbs = parser.add_subparsers(dest="what", required=True)
    for name in ("resumes", "restarts"):
        verb = verbs.add_parser(name)
        verb.add_argument("--kills", type=int, default=100)
        verb.add_argument("--seed", type=int, default=1)
    verb = verbs.add_parser("cost")
    verb.add_argument("--rounds", type=int, default=5)
    verb.add_argument("--steps", type=int, default=100)
    verb.add_argument("--workers", type=int, default=2)
    verb.add_argument("--config", type=Path, help="the run [default: the default model]")
    verb.add_argument("--megabytes-per-second", type=int)
    return parser


class Cluster:
    """The program, and the runs of this measurement."""

    def __init__(self, program: Path, scratch: Path) -> None:
        self.program, self.scratch = program, scratch
        self.begun: list[subprocess.Popen] = []
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("EVERSTEP_")}

    def begin(self, *arguments: object, group: Path | None = None) -> subprocess.Popen:
        """A launcher in a session of its own, with all processes that it starts."""
        def enter() -> None:
            if group is not None:
                (group / "cgroup.procs").write_text(str(os.getpid()))
        with open(self.scratch / "log", "a") as log:
            process = subprocess.Popen(
                [str(word) for word in [self.program, *arguments]], cwd=ROOT, env=self.environment,
                stdout=subprocess.DEVNULL, stderr=log, start_new_session=True, preexec_fn=enter)
        self.begun.append(process)
        return process

    def end(self) -> None:
        """Kills what a measurement that failed has left."""
        for process in self.begun:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def run(self, *arguments: object, group: Path | None = None) -> None:
        launcher = self.begin(*arguments, group=group)
        if launcher.wait() != 0:
            fail(f"the run ended with {launcher.returncode}", self.said())

    def said(self) -> str:
        """What all processes have logged."""
        return (self.scratch / "log").read_text()

    def configure(self, name: str, text: str) -> Path:
        path = self.scratch / f"{name}.toml"
        path.write_text(text)
        return path


class Local:
    """A run by `everstep train`, and by `everstep resume` after a kill."""

    def __init__(self, cluster: Cluster, data: str, steps: int) -> None:
        self.cluster, self.dir = cluster, cluster.scratch / "run"
        config = cluster.configure("run", f"{data}[checkpoint]\nevery = {EVERY}\n")
        self.launcher = cluster.begin(
            "train", "--config", config, "--steps", steps, "--workers", 2, "--dir", self.dir)

    def kill(self) -> None:
        os.killpg(self.launcher.pid, signal.SIGKILL)
        self.launcher.wait()

    def revive(self, workers: int) -> None:
        self.launcher = self.cluster.begin("resume", self.dir, "--workers", workers)

    def is_over(self) -> bool:
        return self.launcher.poll() is not None

    def lines(self) -> list[dict]:
        return lines(self.dir)

    def hash(self) -> str:
        """The state hash, once the run has ended."""
        if self.launcher.wait() != 0:
            fail(f"the resumed run ended with {self.launcher.returncode}", self.cluster.said())
        return json.loads((self.dir / "report.json").read_text())["state_hash"]


class Daemons:
    """A coordinator and workers, each started by hand, before and after a kill."""

    def __init__(self, cluster: Cluster, data: str, steps: int) -> None:
        self.cluster, self.dir = cluster, cluster.scratch / "coordinator"
        self.listen, self.api = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self.daemons = [self.coordinator("--bootstrap")]
        config = cluster.configure("daemons", f'''{data}
[run]
steps = {steps}
start_workers = 2
[checkpoint]
every = {EVERY}
path = "{cluster.scratch / "store"}"
''')
        until("the coordinator answers", lambda: self.ask("coordinator", "status"))
        if self.ask("run", "submit", config) is None:
            fail("the run is refused", cluster.said())
        self.daemons += self.workers(2)

    def coordinator(self, *flags: object) -> subprocess.Popen:
        return self.cluster.begin("coordinator", "--dir", self.dir, "--listen", self.listen,
                                  "--http", self.api, *flags)

    def workers(self, count: int) -> list[subprocess.Popen]:
        token, home = f"@{self.dir / 'join.token'}", self.cluster.scratch / "workers"
        return [self.cluster.begin("worker", "--coordinators", self.listen, "--join", token,
                                   "--dir", home) for _ in range(count)]

    def ask(self, *words: object) -> str | None:
        """What an operator's command prints, or None where it fails."""
        command = [str(word) for word in (self.cluster.program, *words, "--dir", self.dir)]
        with open(self.cluster.scratch / "log", "a") as log:
            done = subprocess.run(command, env=self.cluster.environment, stderr=log,
                                  stdout=subprocess.PIPE, text=True)
        return done.stdout if done.returncode == 0 else None

    def kill(self) -> None:
        for daemon in self.daemons:
            os.killpg(daemon.pid, signal.SIGKILL)
        for daemon in self.daemons:
            daemon.wait()

    def revive(self, workers: int) -> None:
        self.daemons = [self.coordinator(), *self.workers(workers)]

    def is_over(self) -> bool:
        return False

    def lines(self) -> list[dict]:
        """The newest metrics lines, from the coordinator's API."""
        token = (self.dir / "api.token").read_text().strip()
        status = self.page("status", token)
        after = max(0, (status.get("step") or 0) - 50)
        return self.page(f"metrics?stale=true&after={after}", token).get("metrics", [])

    def page(self, path: str, token: str) -> dict:
        request = urllib.request.Request(
            f"http://{self.api}/api/v1/{path}", headers={"Authorization": f"Bearer {token}"})
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return json.load(answer)
        except OSError:
            return {}

    def hash(self) -> str:
        def told() -> str | None:
            status = json.loads(self.ask("run", "status", "--json") or "{}")
            return status.get("hash") if status.get("state") == "complete" else None
        found = until("the run is complete", told, seconds=600)
        self.kill()
        return found


def revivals(cluster: Cluster, kind: type, kills: int, dice: random.Random) -> dict:
    """Kills everything `kills` times, while one run goes on."""
    # A cycle lasts some six steps; what remains at the end is trained without a kill.
    steps = 40 + 9 * kills
    alone, data = cluster.scratch / "alone", text_for_all(cluster)
    cluster.run("train", "--config", cluster.configure("alone", data), "--steps", steps,
                "--workers", 2, "--dir", alone)
    begun_ms = unix_ms()
    run = kind(cluster, data, steps)
    first_steps, undone = [], []
    for kill in range(kills):
        # The random moment: some steps after the first one, and some checkpoints with them.
        wait_for_line(run, begun_ms)
        time.sleep(dice.uniform(0.2, 3.0))
        reached = run.lines()[-1]["step"]
        if reached > steps - 20:
            fail(f"the run is nearly over after {kill} kills: it needs more steps", "")
        run.kill()
        workers = 1 + (kill + dice.randrange(1, 5)) % 5
        begun_ms = unix_ms()
        run.revive(workers)
        line = wait_for_line(run, begun_ms)
        first_steps.append((line["unix_ms"] - begun_ms) / 1000)
        undone.append(max(0, reached + 1 - line["step"]))
        print(f"{kill + 1} of {kills}: {workers} workers, killed at step {reached}, first step "
              f"{line['step']} after {first_steps[-1]:.2f} s", file=sys.stderr)
    hashes = [json.loads((alone / "report.json").read_text())["state_hash"], run.hash()]
    if hashes[0] != hashes[1]:
        fail("another hash than that of the undisturbed run", " ".join(hashes))
    return {"kills": kills, "first_step_seconds": quantiles(first_steps),
            "steps_undone": quantiles(undone), "state_hash": hashes[1]}


def text_for_all(cluster: Cluster) -> str:
    """The key of a text that daemons see, too, as large as the default one."""
    sources = b"".join(path.read_bytes() for path in sorted(ROOT.glob("**/src/**/*.rs")))
    path = cluster.scratch / "text.txt"
    path.write_bytes((sources * (1 + DEFAULT_TEXT_BYTES // len(sources)))[:DEFAULT_TEXT_BYTES])
    return f'[data]\npath = "{path}"\n'


def wait_for_line(run: Local | Daemons, after_ms: int) -> dict:
    """The first metrics line that was written of a step after this moment."""
    def told() -> dict | None:
        if run.is_over():
            fail("the run has ended", run.cluster.said())
        return next((line for line in run.lines() if line["unix_ms"] > after_ms), None)
    return until("a step", told)


def until(what: str, told: Callable[[], T | None], seconds: int = 60) -> T:
    """What this returns in the end."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (found := told()) is not None:
            return found
        time.sleep(0.02)
    sys.exit(f"error: not within {seconds} s: {what}")


def lines(run: Path) -> list[dict]:
    """The newest metrics lines. The last one may be under way, and is left out."""
    path = run / "metrics.jsonl"
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 100_000))
        whole = file.read().split(b"\n")
    return [json.loads(line) for line in whole[:-1] if line.startswith(b'{"step"')]


def cost(cluster: Cluster, arguments: argparse.Namespace) -> dict:
    """Pairs of runs, with and without checkpoints; the order changes from pair to pair."""
    text = arguments.config.read_text() if arguments.config else ""
    disk = Disk(cluster.scratch, arguments.megabytes_per_second)
    with disk:
        stored = cluster.configure(
            "with", f'{text}\n[checkpoint]\nevery = {EVERY}\nkeep = 2\npath = "{disk.path}"\n')
        sides = {"with": stored, "without": cluster.configure("without", text)}
        pairs, stored_steps = [], []
        for number in range(arguments.rounds):
            order = list(sides) if number % 2 == 0 else list(reversed(sides))
            pair = {}
            for side in order:
                run = cluster.scratch / f"{side}-{number}"
                cluster.run("train", "--config", sides[side], "--steps", arguments.steps,
                            "--workers", arguments.workers, "--dir", run, group=disk.group)
                # The first steps are those of caches and of a model that was just built.
                took = [line["seconds"] * 1000 for line in lines(run)][10:]
                if side == "with":
                    stored_steps += [line for line in lines(run) if line["step"] > 10]
                pair[side] = {"median_ms": statistics.median(took), "longest_ms": max(took)}
            written = [json.loads(line) for line in
                       (cluster.scratch / f"with-{number}/events.jsonl").read_text().splitlines()]
            pair["checkpoints"] = sum(event["event"] == "checkpoint" for event in written)
            pair["ratio"] = pair["with"]["median_ms"] / pair["without"]["median_ms"]
            pair["longest_ratio"] = pair["with"]["longest_ms"] / pair["without"]["longest_ms"]
            print(json.dumps(pair), file=sys.stderr)
            pairs.append(pair)
            disk.empty()
    return {"megabytes_per_second": arguments.megabytes_per_second, "pairs": pairs,
            "median_ratio": statistics.median(pair["ratio"] for pair in pairs),
            "median_longest_ratio": statistics.median(pair["longest_ratio"] for pair in pairs),
            "greatest_longest_ratio": max(pair["longest_ratio"] for pair in pairs),
            **by_position(stored_steps)}


def by_position(steps: list[dict]) -> dict:
    """What the steps that write a checkpoint take beyond the others of the same run.

    No other run has to be as fast for this: the machine's speed drifts. What each step would take
    longer because there are checkpoints at all, it cannot show."""
    times: list[list[float]] = [[] for _ in range(EVERY)]
    for step in steps:
        times[step["step"] % EVERY].append(step["seconds"] * 1000)
    medians = [statistics.median(these) for these in times]
    # A checkpoint of step 5 is written while step 6 is computed, and perhaps step 7.
    others = statistics.median(step for position in (3, 4, 0) for step in times[position])
    extra = sum(medians[position] - others for position in (1, 2)) / EVERY
    return {"steps": len(steps), "median_ms_by_position": medians,
            "share_of_writing": extra / others}


class Disk:
    """Where the checkpoints go: a folder, or a disk that writes no faster than asked for."""

    def __init__(self, scratch: Path, megabytes_per_second: int | None) -> None:
        self.rate, self.image = megabytes_per_second, scratch / "disk.img"
        self.path, self.group = scratch / "store", None

    def __enter__(self) -> None:
        self.path.mkdir()
        if self.rate is None:
            return
        self.image.touch()
        os.truncate(self.image, 4 << 30)
        shell("mkfs.ext4", "-q", "-F", self.image)
        shell("mount", "-o", "loop", self.image, self.path)
        source = shell("findmnt", "-no", "SOURCE", self.path).strip()
        device = Path(f"/sys/block/{Path(source).name}/dev").read_text().strip()
        self.group = GROUPS / f"everstep-{os.getpid()}"
        self.group.mkdir()
        limit = f"{device} {self.rate * 1_000_000}"
        (self.group / "blkio.throttle.write_bps_device").write_text(limit)

    def empty(self) -> None:
        """The next pair's run is another one, and would not write into the store of this one."""
        shell("find", self.path, "-mindepth", "1", "-delete")

    def __exit__(self, *_: object) -> None:
        if self.rate is not None:
            shell("umount", self.path)
            self.group.rmdir()


def shell(*command: object) -> str:
    return subprocess.run(
        [str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True).stdout


def quantiles(values: list) -> dict:
    ordered = sorted(values)
    at = [ordered[max(0, math.ceil(len(ordered) * part) - 1)] for part in (0.5, 0.99)]
    return {"p50": at[0], "p99": at[1], "longest": ordered[-1]}


def unix_ms() -> int:
    return time.time_ns() // 1_000_000


def fail(what: str, why: str) -> None:
    sys.exit(f"error: {what}\n{why[-4000:]}")


if __name__ == "__main__":
    main()
