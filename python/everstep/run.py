"""``everstep.Run``: the loop of a script, on as many workers as there are."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any

import torch

from everstep import _everstep, data as samples, optimizer as rules, safetensors, seeds
from everstep.parameters import Gradients, Parameters, buffers, fixed_digest

#: How much the scheduler favours the worker's other threads: a starved one loses healthy links.
NICE = 5
#: How long a complete run may take to have its report, seconds.
REPORT_TIMEOUT = 30.0

_the_run: Run | None = None


class Run:
    """A model in training. Iterating over it yields micro-batches, until the run is complete.

    ::

        run = everstep.Run(model, optimizer, schedule, data=dataset, steps=1000, data_shards=8,
                           micro_batch=16)
        for x, y in run:
            run.backward(F.cross_entropy(model(x), y))

    Each turn of the loop computes one micro-batch of one data shard of one step. Its result may be
    thrown away when a worker dies, so the loop's body counts nothing itself: :attr:`step` is there.
    It makes no steps of the optimizer and zeroes no gradients: ``p.grad`` is ``None`` outside of
    :meth:`backward`. Every worker runs the same script, and must make the same model: seed the
    generators before (``torch.manual_seed``).

    ``model``: its f32 parameters that require gradients are trained. Their values now are the
    initial weights. ``optimizer``: AdamW, Adam or SGD of ``torch.optim``, or
    :class:`everstep.Lion`. Its class and its groups are read, and it is never stepped.
    ``schedule``: any scheduler that follows from the step alone.

    ``data``: a map-style data set. The order of its samples follows from ``seed``. ``steps`` or
    ``epochs``: how long to train. A step's batch has ``data_shards`` x ``accumulate`` x
    ``micro_batch`` samples, and ``data_shards`` is the most workers that compute at once.
    ``clip_norm``: the greatest norm of a step's gradient. ``copies``: how many workers hold each
    part of the optimizer's state. ``loaders``: processes that read samples ahead, 0 for none.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: Any = None,
        *,
        data: Any,
        steps: int | None = None,
        epochs: int | None = None,
        data_shards: int,
        micro_batch: int,
        accumulate: int = 1,
        clip_norm: float | None = None,
        seed: int = 1,
        copies: int = 2,
        loaders: int = 0,
        collate: Callable[[list[Any]], Any] | None = None,
        device: str | torch.device | None = None,
        name: str | None = None,
    ) -> None:
        global _the_run
        if _the_run is not None:
            raise RuntimeError("a process has one everstep.Run, and this one has it already")
        if "EVERSTEP_COORDINATORS" not in os.environ:
            raise RuntimeError(
                "this process is no worker: start the script with `everstep launch SCRIPT`"
            )
        #: Where the model computes.
        self.device = torch.device("cpu" if device is None else device)
        if self.device.type != "cpu":
            raise ValueError(f"device={self.device}: Everstep computes PyTorch models on the CPU")
        threads = int(os.environ.get("EVERSTEP_THREADS", "1"))
        _prepare_thread(threads)
        count = samples.check(data)
        self.steps = _steps(steps, epochs, count, data_shards * micro_batch * accumulate)
        self._model, self._seed = model, seed
        self._parameters = Parameters(model)
        rule = rules.rule(optimizer, schedule, self._parameters.trained, self.steps)
        keyed = samples.Keyed(data, seed)
        self._directory = Path(os.environ.get("EVERSTEP_DIR") or tempfile.gettempdir())
        settings = {
            "name": name or Path(sys.argv[0]).stem or "script",
            "seed": seed,
            "steps": self.steps,
            "samples": count,
            "data_shards": data_shards,
            "micro_batch": micro_batch,
            "accumulate": accumulate,
            "clip_norm": clip_norm,
            "copies": copies,
            "threads": threads,
            "data_digest": samples.fingerprint(keyed, count),
            "fixed_digest": fixed_digest(model),
            "torch": torch.__version__,
        }
        self._engine = _everstep.Engine(
            json.dumps(settings),
            json.dumps(rule),
            self._parameters.layout(),
            self._parameters.flat.data_ptr(),
            str(self._initial_weights()),
        )
        self._gradients = Gradients(self._engine, self._parameters)
        self._batches = samples.Batches(keyed, self._engine.rows, accumulate, loaders, collate)
        self._turn: tuple[int, int, int, bool, bool, float, list[int]] | None = None
        self._step = 1
        self._is_iterated = self._is_complete = self._has_ended = False
        self._is_launched = "EVERSTEP_CONTROL_FD" in os.environ
        self._report: dict[str, Any] | None = None
        self._buffers: dict[str, bytes] | None = buffers(model)
        _the_run = self
        self._watch_the_end()
        self._engine.start(self._is_launched)

    def _initial_weights(self) -> Path:
        """A file with the weights as they are. The worker reads it if its run begins again.

        Its name follows from the weights, so the workers of a directory share one file.
        """
        flat = self._parameters.flat.numpy()
        digest = hashlib.blake2b(flat.data, digest_size=8).hexdigest()
        path = self._directory / f"initial-{digest}.safetensors"
        if not path.exists():
            self._directory.mkdir(parents=True, exist_ok=True)
            safetensors.write(path, self._parameters.tensors())
        return path

    @property
    def step(self) -> int:
        """The step that is computed, from 1."""
        return self._step

    @property
    def report(self) -> SimpleNamespace:
        """The report of the complete run, as in ``report.json``: ``report.state_hash`` and more."""
        if self._report is None:
            raise RuntimeError(
                "there is no report here: it comes after the loop, in the directory of the launcher"
            )
        return SimpleNamespace(**self._report)

    def __iter__(self) -> Iterator[Any]:
        if self._is_iterated:
            raise RuntimeError("a run is iterated once: its steps are over, or were left")
        self._is_iterated = True
        while True:
            turn = self._engine.next()
            if turn is None:
                break
            step, shard, micro = turn[:3]
            self._step = step
            batch = self._batches.of((step, shard, micro))
            seeds.seed_generators(seeds.key(seeds.MICRO_BATCH, self._seed, step, shard, micro))
            self._engine.parameters()
            self._turn = turn
            yield batch
            if self._turn is not None:
                raise RuntimeError("the loop's body did not call run.backward(loss)")
        self._conclude()

    def backward(self, loss: torch.Tensor) -> None:
        """Computes the gradients of a micro-batch's mean loss, and hands them to their owners.

        In place of ``loss.backward()``, ``optimizer.step()`` and ``optimizer.zero_grad()``.
        """
        if self._turn is None:
            raise RuntimeError("run.backward is called once in each turn of the loop over the run")
        if loss.numel() != 1:
            raise ValueError(f"the loss has {loss.numel()} elements: give the mean, one number")
        is_last, scale = self._turn[4], self._turn[5]
        self._gradients.begin(is_last)
        (loss * scale).backward()
        self._gradients.finish()
        self._check_buffers()
        self._turn = None
        self._engine.done(float(loss.detach()))
        self._gradients.release()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model's ``state_dict`` as safetensors, after the loop.

        Every worker may call it: the file is written whole, with the same bytes.
        """
        if not self._is_complete:
            raise RuntimeError(
                "there is no trained model here: it comes after the loop, in the directory of the "
                "launcher"
            )
        safetensors.write(path, self._model.state_dict())

    def _check_buffers(self) -> None:
        """After the first pass: a model must have no state beside its parameters that training
        changes. It would differ from worker to worker."""
        before, self._buffers = self._buffers, None
        if before is None:
            return
        after = buffers(self._model)
        changed = [name for name in before if after.get(name) != before[name]]
        if changed:
            raise RuntimeError(
                f"training changes the buffer {changed[0]}, and Everstep does not carry buffers "
                "from worker to worker: take a norm without statistics, such as GroupNorm, or "
                "track_running_stats=False"
            )

    def _conclude(self) -> None:
        """The worker has ended: after its run, or before."""
        code, words = self._engine.ended() or (1, "error: the worker has ended")
        self._has_ended = True
        if code != 0:
            print(words, file=sys.stderr, flush=True)
            raise SystemExit(code)
        self._report = self._read_report()
        if self._report is not None and self._report["state"] != "complete":
            print("error: the run has failed elsewhere", file=sys.stderr, flush=True)
            raise SystemExit(1)
        trained = self._directory / "model.safetensors"
        if self._report is not None and trained.exists():
            # A worker that joined late may not have all trained weights itself.
            self._parameters.load(safetensors.read_f32(trained))
            self._is_complete = True

    def _read_report(self) -> dict[str, Any] | None:
        """The report of the run. None for a worker in another directory than its launcher's."""
        path = self._directory / "report.json"
        until = time.monotonic() + (REPORT_TIMEOUT if self._is_launched else 0.0)
        while not path.exists():
            if time.monotonic() > until:
                return None
            time.sleep(0.02)
        report: dict[str, Any] = json.loads(path.read_text())
        return report

    def _watch_the_end(self) -> None:
        """Has an exception of the script, or its early end, fail the run."""
        previous = sys.excepthook

        def failed(
            kind: type[BaseException], error: BaseException, trace: TracebackType | None
        ) -> None:
            previous(kind, error, trace)
            sys.stderr.flush()
            # What a place lacks may be there elsewhere: then only this worker ends.
            if issubclass(kind, (MemoryError, torch.OutOfMemoryError, KeyboardInterrupt)):
                self._has_ended = True
            else:
                words = "".join(traceback.format_exception_only(kind, error)).strip()
                self._leave(f"the script raised {words}")

        sys.excepthook = failed
        atexit.register(self._end_early)

    def _end_early(self) -> None:
        self._leave(
            f"the script ended at step {self._step} of {self.steps}, before its run was over: "
            "iterate over the run to its end, and give fewer steps to end it earlier"
        )

    def _leave(self, words: str) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._engine.leave(words)


def _steps(steps: int | None, epochs: int | None, count: int, batch: int) -> int:
    """How many steps to train. The last step of so many epochs may begin another one."""
    if (steps is None) == (epochs is None):
        raise ValueError("give either steps or epochs")
    if batch <= 0:
        raise ValueError("data_shards, micro_batch and accumulate must be at least 1")
    return steps if steps is not None else -(-epochs * count // batch)  # type: ignore[operator]


def _prepare_thread(threads: int) -> None:
    """The thread that computes gives way to those that send, and has the run's thread count."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
    except OSError:
        pass  # a system may refuse, and the run goes on
    torch.set_num_threads(threads)
