#!/usr/bin/env python3
"""Measures Everstep and its peers in turn on this machine; every measurement goes into a JSON file.

    cargo build --release
    python3 -m venv v && v/bin/pip install torch==2.15.0 torchft==0.2.0 numpy matplotlib ./python
    tests/peers/measure.py --venv v [--only PART ...] [--rounds N] [--minutes M]

A part is measured in rounds: in each of them everything once, Everstep and its peer one after the
other, and in the next round the other way round, since a machine's speed drifts. A part that was
not asked for stays in the file as it was. plot.py makes plots and tables of the file.
"""
import argparse
import json
import os
import platform
import signal
import subprocess
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

import parts

ROOT = Path(__file__).resolve().parents[2]


class Place:
    """Where programs are and where their files go."""

    def __init__(self, binary: Path, venv: Path, scratch: Path) -> None:
        self.binary, self.python = binary.absolute(), (venv / "bin/python").absolute()
        self.scratch = scratch

    def check(self) -> None:
        if not os.access(self.binary, os.X_OK):
            fail(f"{self.binary} is not there", "build it: cargo build --release")
        if not os.access(self.python, os.X_OK):
            fail(f"{self.python} is not there", "make the environment (measure.py --help)")
        try:
            run([self.python, "-c", "import torch"])
        except parts.Failed:
            fail(f"{self.python} has no torch", "install it: VENV/bin/pip install torch numpy")

    def everstep(self, *arguments: object) -> str:
        return run([self.binary, *arguments])

    def package(self, *arguments: object) -> str:
        """The command of Everstep's Python package, which a wheel has put into the environment."""
        return run([self.python, "-m", "everstep", *arguments])

    def script(self, name: str) -> Path:
        return ROOT / "tests/peers" / name

    def peer(self, script: str, *arguments: object) -> dict:
        return json.loads(run([self.python, self.script(script), *arguments]))

    def bench(self, name: str) -> str:
        """What a bench of the kernels prints."""
        return run(["cargo", "bench", "-q", "-p", "everstep-kernels", "--bench", name])

    def file(self, name: str) -> Path:
        """A path in the scratch folder."""
        return self.scratch / name


def run(command: list) -> str:
    """Standard output of a program, which may take five minutes."""
    words = [str(word) for word in command]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("EVERSTEP_")}
    # A session of its own: whatever the program has started ends with it.
    program = subprocess.Popen(
        words, cwd=ROOT, env=environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, err = program.communicate(timeout=300)
    except BaseException as cause:
        os.killpg(program.pid, signal.SIGKILL)
        program.wait()
        if isinstance(cause, subprocess.TimeoutExpired):
            raise parts.Failed(f"{' '.join(words)}\nhas not ended within 300 s") from None
        raise
    if program.returncode != 0:
        raise parts.Failed(f"{' '.join(words)}\nended with {program.returncode}:\n{err[-2000:]}")
    return out


def measure(part: parts.Part, place: Place, rounds: int, minutes: float) -> list:
    """All measurements of a part. No round begins that would not end in time, but the first."""
    began, longest, measured = time.monotonic(), 0.0, []
    for number in range(1, rounds + 1):
        start = time.monotonic()
        if number > 1 and start - began + longest > 60 * minutes:
            print(f"{part.name}: {number - 1} of {rounds} rounds in {minutes:g} minutes")
            break
        for trial in part.trials:
            sides = list(trial.sides.items())
            for who, job in sides if number % 2 else reversed(sides):
                result = {"round": number, "who": who, **trial.labels, **job(place)}
                measured.append(result)
                print(f"{part.name}: {json.dumps(result)}"[:200], flush=True)
        longest = max(longest, time.monotonic() - start)
    return measured


def machine() -> dict:
    names = [line.split(":", 1)[1].strip() for line in lines("/proc/cpuinfo")
             if line.startswith("model name")]
    memory = [int(line.split()[1]) for line in lines("/proc/meminfo")
              if line.startswith("MemTotal")]
    return {"cpu": names[0] if names else platform.processor() or platform.machine(),
            "cores": os.cpu_count(), "memory_gb": round(sum(memory) * 1024 / 1e9, 1),
            "kernel": platform.release()}


def lines(path: str) -> list:
    return Path(path).read_text().splitlines() if os.path.exists(path) else []


def commit() -> str:
    """The commit that is checked out; `+` if something other than documents differs from it."""
    commit = run(["git", "rev-parse", "--short=12", "HEAD"]).strip()
    changed = run(["git", "status", "--porcelain", "--untracked-files=no", "--",
                   ".", ":!docs", ":!*.md"])
    return commit + ("+" if changed.strip() else "")


def versions(place: Place) -> dict:
    torch = run([place.python, "-c", "import torch; print(torch.__version__)"]).strip()
    return {"torch": torch, "python": platform.python_version()}


def text(measured: dict) -> str:
    """JSON with a line for each measurement, so that a change of one is a change of a line."""
    def part(held: dict) -> str:
        entries = ",\n".join(f"   {json.dumps(entry)}" for entry in held["measurements"])
        facts = "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n"
                        for key, value in held.items() if key != "measurements")
        return f'{{\n{facts}  "measurements": [\n{entries}\n  ]\n }}'

    held = ",\n".join(f" {json.dumps(name)}: {part(held)}" for name, held in measured.items())
    return f"{{\n{held}\n}}\n"


def fail(what: str, todo: str) -> None:
    raise SystemExit(f"measure.py: {what}\n  next: {todo}")


def main() -> None:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--venv", type=Path, required=True, help="an environment with torch")
    flags.add_argument("--only", nargs="+", choices=list(parts.PARTS), default=list(parts.PARTS),
                       metavar="PART", help=f"of {', '.join(parts.PARTS)}; default: all")
    flags.add_argument("--rounds", type=int, help="default: each part's own number")
    flags.add_argument("--minutes", type=float, default=10, help="at most, for each part")
    flags.add_argument("--binary", type=Path, default=ROOT / "target/release/everstep")
    flags.add_argument("--out", type=Path, default=ROOT / "docs/performance/measured.json")
    flags = flags.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        place = Place(flags.binary, flags.venv, Path(scratch))
        place.check()
        for name in flags.only:
            part = parts.PARTS[name]
            held = {"command": f"tests/peers/measure.py --venv VENV --only {name}",
                    "measured_at": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
                    "commit": commit(), "machine": machine(), "versions": versions(place)}
            try:
                found = measure(part, place, flags.rounds or part.rounds, flags.minutes)
            except parts.Failed as failed:
                fail(str(failed), f"mend it, and measure this part again: --only {name}")
            measured = json.loads(flags.out.read_text()) if flags.out.exists() else {}
            measured[name] = {**held, "measurements": found}
            ordered = {name: measured[name] for name in parts.PARTS if name in measured}
            flags.out.parent.mkdir(parents=True, exist_ok=True)
            flags.out.write_text(text(ordered))


if __name__ == "__main__":
    main()
