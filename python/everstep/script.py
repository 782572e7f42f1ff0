"""The run of a script, in whichever framework its model is.

A :class:`ScriptRun` states its run, starts a launcher where there is none, waits for the report, and
has the script's errors fail the run. It knows no tensors: a subclass computes.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any

from everstep import _everstep, process
from everstep.alone import Launcher, own_script
from everstep.evaluation import Evaluator, Function
from everstep.samples import SeededDataset, fingerprint
from everstep.scalars import Scalars
from everstep.weights import Weights

#: How long a complete run may take to have its report, seconds.
REPORT_TIMEOUT = 30.0

_the_run: ScriptRun | None = None

#: A turn: its step, data shard and micro-batch, whether it is the first and the last of its data
#: shard, the factor of the loss, and the numbers of its samples. Step 0 stands for an evaluation.
Turn = tuple[int, int, int, bool, bool, float, list[int]]


class ReportElsewhere(SimpleNamespace):
    """The report of a complete run, as far as a worker in another directory than its launcher's
    knows it. What it does not know is None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class ScriptRun(ABC):
    """The run of a process, from its statement to its report."""

    #: What cannot be done twice in a turn, as the script knows it.
    _HAND_OVER = "run.backward"
    #: How many steps the run trains.
    steps: int
    _engine: _everstep.Engine
    _evaluator: Evaluator
    _scalars: Scalars
    _weights: Weights

    def __init__(self, seed: int) -> None:
        if _the_run is not None:
            raise RuntimeError("a process has one everstep.Run, and this one has it already")
        self._seed = seed
        self._threads = int(os.environ.get("EVERSTEP_THREADS", "1"))
        #: A process that measures writes this file, and trains nothing.
        self._measured = os.environ.get("EVERSTEP_MEASURED_FILE")
        self._is_alone = "EVERSTEP_COORDINATORS" not in os.environ and self._measured is None
        if self._is_alone:
            process.check_launcher()
        self._is_launched = "EVERSTEP_CONTROL_FD" in os.environ
        self._turn: Turn | None = None
        self._step = 1
        self._is_in_backward = self._is_complete = self._has_ended = self._is_started = False
        self._launcher: Launcher | None = None
        self._report: SimpleNamespace | None = None

    def _state(
        self,
        settings: dict[str, Any],
        rule: dict[str, Any],
        tensors: list[tuple[str, list[int]]],
        statistics: list[tuple[str, list[int], str]],
        flat: Any,
        write: Callable[[Path], None],
    ) -> None:
        """Makes the engine, which states the run. ``flat`` is the flat vector in the host's memory,
        as NumPy has it, and ``write`` writes a file with its tensors."""
        self._directory = process.temporary() if self._is_alone else process.directory()
        own: dict[str, Any] = {"seed": self._seed, "steps": self.steps, "threads": self._threads}
        own["name"] = settings.pop("name") or Path(sys.argv[0]).stem or "script"
        self._engine = _everstep.Engine(
            json.dumps({**settings, **own}),
            json.dumps(rule),
            tensors,
            statistics,
            flat.ctypes.data,
            str(self._initial_weights(flat.data, write)),
        )

    def _take_the_process(self) -> None:
        """The run is made: it is the one of this process, whose end is the run's."""
        global _the_run
        _the_run = self
        process.print_stacks_of_fatal_errors()
        atexit.register(self._end_launcher)
        self._watch_the_end()

    # What a framework does in its own way.

    @abstractmethod
    def _micro_batches(self) -> Iterator[Any]:
        """Computes turns until the engine has no more."""

    @abstractmethod
    def _take_model(self, path: Path) -> None:
        """Takes the trained model of a file."""

    @abstractmethod
    def _take_vector(self, data: bytes) -> None:
        """Takes the trained model as the bytes of the flat vector."""

    @abstractmethod
    def _write_model(self, path: Path) -> None:
        """Writes the trained model."""

    def _begin_loop(self) -> None:
        """The loop begins, or goes on."""

    def _pause_loop(self) -> None:
        """The loop is over, or was interrupted and may go on later."""

    def _release_model(self) -> None:
        """The run is over, and the script may do what it likes."""

    def _peak_bytes(self) -> int | None:
        """The most memory that a device has had for this process. None on the CPU."""
        return None

    # What all have in common.

    def _start(self) -> None:
        """States the run, and starts the worker, unless that has been done."""
        if self._is_started:
            return
        self._is_started = True
        self._engine.evaluate_each(self._evaluator.every)
        if self._measured is not None:
            self._engine.measure(self._measured)
            return
        if self._is_alone:
            self._launcher = self._launch_alone(self._threads)
        self._engine.start(self._is_launched, self._launcher is None)
        if self._launcher is not None:
            self._launcher.watch(self._engine.abandon)

    def _initial_weights(self, flat: Any, write: Callable[[Path], None]) -> Path:
        """A file with the weights as they are, which ``write`` writes. ``flat`` has their bytes. The
        worker reads the file if its run begins again.

        Its name follows from the weights, so the workers of a directory share one file.
        """
        digest = hashlib.blake2b(flat, digest_size=8).hexdigest()
        path = self._directory / f"initial-{digest}.safetensors"
        if not path.exists():
            self._directory.mkdir(parents=True, exist_ok=True)
            write(path)
        return path

    def _launch_alone(self, threads: int) -> Launcher:
        """Starts a launcher for this process, and has the engine join its cluster."""
        launcher = Launcher(self._engine.statement(), threads)
        os.environ.update(launcher.environment())
        self._directory = launcher.directory
        return launcher

    def _end_launcher(self) -> None:
        if self._launcher is not None:
            self._launcher.end()

    def add_workers(self, count: int, script: str | None = None, *arguments: str) -> None:
        """Starts further workers on this machine: fresh processes of a script that states the same
        run, by default this one. For a process that was started without a launcher, such as a
        notebook's. They end with it.
        """
        if not self._is_alone:
            raise RuntimeError(
                "the workers of this run have a launcher: its first lines have the command with "
                "which another worker joins"
            )
        if script is None and not own_script():
            raise ValueError("this process has no script: name one that states the same run")
        self._start()
        assert self._launcher is not None, "it has started"
        self._launcher.add(count, [script, *arguments] if script is not None else own_script())

    def _data_digest(self, keyed: SeededDataset, count: int, validation: Any) -> str:
        """A digest of what this worker knows of the data: every worker must have the same."""
        parts = [fingerprint(keyed, count)]
        if validation is not None:
            held_out = SeededDataset(validation, self._seed)
            parts.append(fingerprint(held_out, len(validation)))
        weights = self._weights.text()
        if weights is not None:
            parts.append(weights)
        if len(parts) == 1:
            return parts[0]
        return hashlib.blake2b("\n".join(parts).encode()).hexdigest()

    @property
    def step(self) -> int:
        """The step that is computed, from 1."""
        return self._step

    @property
    def report(self) -> SimpleNamespace:
        """The report of the complete run, as in ``report.json``: ``report.state_hash`` and more.

        In a worker in another directory than its launcher's, what that worker does not know is
        ``None``. It knows the hash if the run keeps checkpoints in a store that it reaches.
        """
        if self._report is None:
            raise RuntimeError("there is no report yet: it comes after the loop, which ends by itself")
        return self._report

    def __iter__(self) -> Iterator[Any]:
        if self._has_ended:
            raise RuntimeError(
                "the run is over: one loop over it trains all steps, so it stands in no loop over "
                "epochs. Say how many there are by epochs= or steps="
            )
        if self._is_in_backward:
            raise RuntimeError(
                f"the loop was interrupted in {self._HAND_OVER}, whose gradients cannot be computed "
                "twice: end this process, and resume the run's directory"
            )
        self._evaluator.check()
        self._begin_loop()
        self._start()
        try:
            yield from self._micro_batches()
        finally:
            self._pause_loop()
        self._conclude()

    def evaluate(self, function: Function | None = None, *, every: int | None = None) -> Any:
        """Marks the function that evaluates held-out samples: ``@run.evaluate``, or
        ``@run.evaluate(every=500)``, before the loop.

        It gets batches of ``validation`` after the last step. A model of PyTorch is in ``eval``
        mode then, without gradients. The function returns the mean loss of a batch, or a dict with
        ``"loss"`` and one more mean. The means over all samples are in the report, as its validation
        loss and metric.

        ``every``: it also gets them in each so many steps, with the parameters that the step begins
        with. The means are in the line of the step, beside the loss of the same parameters.
        """
        if self._is_started and (every or 0) != self._evaluator.every:
            raise RuntimeError(
                "every= is a part of the run, which has begun: mark the function before the loop"
            )
        if function is None:
            return lambda marked: self.evaluate(marked, every=every)
        self._evaluator.mark(function, every)
        return function

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model's tensors as safetensors, after the loop.

        Every worker may call it: the file is written whole, with the same bytes. A worker in another
        directory than its launcher's, which reaches no store of the run either, has no trained
        model: it writes nothing, and says so. So has every worker on a cluster of daemons whose run
        writes no checkpoints.
        """
        if self._report is None:
            raise RuntimeError(
                "there is no trained model yet: it comes after the loop, which ends by itself"
            )
        if not self._is_complete:
            words = f"note: {os.fspath(path)} was not written: this worker has no trained model. It is in"
            where = "the directory of the launcher, or where `everstep run status` says"
            print(words, where, file=sys.stderr, flush=True)
            return
        self._write_model(Path(path))

    def _conclude(self) -> None:
        """The worker has ended: after its run, or before."""
        code, words = self._engine.ended() or (1, "error: the worker has ended")
        self._has_ended = True
        self._release_model()
        if code != 0:
            print(words, file=sys.stderr, flush=True)
            raise SystemExit(code)
        if self._measured is not None:
            self._add_peak(Path(self._measured))
            raise SystemExit(0)  # there is no trained model for what comes after the loop
        report = self._read_report()
        if self._launcher is not None:
            self._launcher.end(REPORT_TIMEOUT)
        if report is None:
            self._report = ReportElsewhere(state="complete", steps=self.steps)
            return self._take_last_checkpoint(self._report)
        if report["state"] != "complete":
            print("error: the run has failed elsewhere", file=sys.stderr, flush=True)
            raise SystemExit(1)
        self._report = SimpleNamespace(**report)
        trained = self._directory / "model.safetensors"
        if trained.exists():
            self._take_model(trained)
            self._is_complete = True

    def _add_peak(self, file: Path) -> None:
        """Adds what a GPU has taken to what the engine has measured."""
        peak = self._peak_bytes()
        if peak is not None:
            file.write_text(json.dumps({**json.loads(file.read_text()), "gpu_bytes": peak}))

    def _take_last_checkpoint(self, report: SimpleNamespace) -> None:
        """A worker in another directory finds the end of the run in its last checkpoint, if the run
        keeps checkpoints in a store that this worker reaches."""
        try:
            found = self._engine.state()
        except RuntimeError:
            return
        if found is not None:
            self._take_vector(found[2][0][1])
            report.state_hash = found[1]
            self._is_complete = True

    def _read_report(self) -> dict[str, Any] | None:
        """The report of the run. None for a worker in another directory than its launcher's."""
        path = self._directory / "report.json"
        comes = self._is_launched or self._launcher is not None or path.exists()
        until = time.monotonic() + (REPORT_TIMEOUT if comes else 0.0)
        while True:
            report = json.loads(path.read_text()) if path.exists() else None
            # A run that goes on may still have the report of its interruption.
            is_complete = report is not None and report["state"] == "complete"
            if is_complete or time.monotonic() >= until:
                return report
            time.sleep(0.02)

    def _watch_the_end(self) -> None:
        """Has an exception of the script, or its early end, fail the run."""
        previous = sys.excepthook

        def failed(
            kind: type[BaseException], error: BaseException, trace: TracebackType | None
        ) -> None:
            previous(kind, error, trace)
            sys.stderr.flush()
            # Then only this worker ends.
            if issubclass(kind, KeyboardInterrupt) or process.is_of_place(error):
                self._has_ended = True
            else:
                words = "".join(traceback.format_exception_only(kind, error)).strip()
                self._leave(f"the script raised {words}")

        sys.excepthook = failed
        atexit.register(self._end_early)

    def _end_early(self) -> None:
        if self._is_alone and not self._has_ended:
            process.fail_at_exit()
        self._leave(
            f"the script ended at step {self._step} of {self.steps}, before its run was over: "
            "iterate over the run to its end, and give fewer steps to end it earlier"
        )

    def _leave(self, words: str) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        if self._is_alone and not self._is_started:
            print(f"error: {words}", file=sys.stderr, flush=True)
            return
        self._start()
        self._engine.leave(words)


def step_count(steps: int | None, epochs: int | None, count: int, batch: int) -> int:
    """How many steps to train. The last step of so many epochs may begin another one."""
    if (steps is None) == (epochs is None):
        raise ValueError("give either steps or epochs")
    if batch <= 0:
        raise ValueError("data_shards, micro_batch and accumulate must be at least 1")
    return steps if steps is not None else -(-epochs * count // batch)  # type: ignore[operator]
