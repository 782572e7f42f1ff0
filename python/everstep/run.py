"""``everstep.Run``: the loop of a script, on as many workers as there are."""

from __future__ import annotations

import atexit
import hashlib
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any

import torch

from everstep import _everstep, data as samples, export, optimizer as rules, process, safetensors
from everstep import device as devices, seeds
from everstep.alone import Launcher, own_script
from everstep.buffers import FixedBuffers, Statistics
from everstep.evaluation import Evaluator, Function
from everstep.guard import Guard, check_launcher, check_optimizer, model_inside
from everstep.parameters import Gradients, Parameters, fixed_digest
from everstep.probe import Probe, processor
from everstep.scalars import Scalars
from everstep.weights import Weights

#: How long a complete run may take to have its report, seconds.
REPORT_TIMEOUT = 30.0

_the_run: Run | None = None


class ReportElsewhere(SimpleNamespace):
    """The report of a complete run, as far as a worker in another directory than its launcher's
    knows it. What it does not know is None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


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
    initial weights. ``optimizer``: one of ``torch.optim`` that is elementwise, or
    :class:`everstep.Lion`. Its class and its groups are read, and it is never stepped.
    ``schedule``: any scheduler that follows from the step alone.

    ``data``: a map-style data set. The order of its samples follows from ``seed``. ``steps`` or
    ``epochs``: how long to train. A step's batch has ``data_shards`` x ``accumulate`` x
    ``micro_batch`` samples, and ``data_shards`` is the most workers that compute at once.
    ``clip_norm``: the greatest norm of a step's gradient. ``copies``: how many workers hold each
    part of the optimizer's state. ``loaders``: processes that read samples ahead, 0 for none.
    ``loss_scaling``: in the place of a ``GradScaler``, for a loop in ``torch.float16``.

    ``validation``: held-out samples, for the function that :meth:`evaluate` marks. ``weights``: a
    number for each sample, such as its count of tokens. Then a step's loss is the mean over all
    units of the step, and :meth:`backward` gets the mean over the units of its micro-batch. A loop
    may give each micro-batch its weight instead.

    ``device``: the model is moved there first, as by ``model.to(device)``. By default it stays where
    it is: on the CPU, or on one NVIDIA GPU. :attr:`device` has the device, and the tensors of each
    micro-batch are moved there.

    ``buffers``: what becomes of a buffer that training changes, by its name: ``"mean"`` adds the
    mean of the changes of all data shards, ``"first"`` takes the value of the first data shard, and
    ``"local"`` leaves each process its own. Batch norms and instance norms need no mention.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: Any = None,
        *,
        data: Any,
        validation: Any = None,
        weights: Sequence[float] | None = None,
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
        loss_scaling: bool = False,
        buffers: dict[str, str] | None = None,
        device: str | torch.device | None = None,
        name: str | None = None,
    ) -> None:
        global _the_run
        if _the_run is not None:
            raise RuntimeError("a process has one everstep.Run, and this one has it already")
        model = model_inside(model)
        check_optimizer(optimizer)
        if device is not None:
            model.to(device)  # its parameters stay the same objects
        threads = int(os.environ.get("EVERSTEP_THREADS", "1"))
        process.prepare_thread(threads)
        count = samples.check(data)
        self.steps = step_count(steps, epochs, count, data_shards * micro_batch * accumulate)
        self._model, self._seed = model, seed
        self._optimizer, self._schedule = optimizer, schedule
        self._weights = Weights(weights, count)
        self._shape = data_shards, accumulate
        self._statistics = Statistics(model, buffers)
        self._parameters = Parameters(model, self._statistics.count)
        self._memory = self._parameters.memory
        self._statistics.live_in(self._memory)
        self._memory.begin()
        self._scalars = Scalars(self._memory)
        #: Where the model computes.
        self.device = self._parameters.device
        devices.repeat(self.device)
        self._fixed_buffers = FixedBuffers(model, self._statistics)
        self._rule = rules.rule(optimizer, schedule, self._parameters.trained, self.steps)
        keyed = samples.SeededDataset(data, seed)
        self._evaluator = Evaluator(
            model, self.device, validation, seed, collate or samples.default_collate
        )
        #: A process that measures writes this file, and trains nothing.
        self._measured = os.environ.get("EVERSTEP_MEASURED_FILE")
        is_alone = "EVERSTEP_COORDINATORS" not in os.environ and self._measured is None
        if is_alone:
            check_launcher()
        self._directory = process.temporary() if is_alone else process.directory()
        settings: dict[str, Any] = {
            "name": name or Path(sys.argv[0]).stem or "script",
            "seed": seed,
            "steps": self.steps,
            "samples": count,
            "held_out": 0 if validation is None else samples.check(validation),
            "data_shards": data_shards,
            "micro_batch": micro_batch,
            "accumulate": accumulate,
            "clip_norm": clip_norm,
            "copies": copies,
            "threads": threads,
            "update_threads": threads if self.device.type == "cpu" else None,
            "loss_scaling": loss_scaling,
            "processor": processor(self.device),
            "gpu": devices.description(self.device),
            "data_digest": self._data_digest(keyed, count, validation),
            "fixed_digest": fixed_digest(model, self._fixed_buffers),
            "torch": torch.__version__,
        }
        self._engine = _everstep.Engine(
            json.dumps(settings),
            json.dumps(self._rule),
            self._parameters.layout(),
            self._statistics.layout(),
            self._memory.host.data_ptr(),
            str(self._initial_weights()),
        )
        self._gradients = Gradients(self._engine, self._parameters)
        self._probe = Probe(self._engine, loss_scaling)
        self._batches = samples.Batches(
            keyed, self._engine.rows, accumulate, loaders, collate, self.device
        )
        self._turn: tuple[int, int, int, bool, bool, float, list[int]] | None = None
        self._step = 1
        self._is_in_backward = self._is_complete = self._has_ended = False
        self._is_launched = "EVERSTEP_CONTROL_FD" in os.environ
        self._is_alone, self._threads, self._is_started = is_alone, threads, False
        self._launcher: Launcher | None = None
        self._report: SimpleNamespace | None = None
        self._guard = Guard(model, optimizer, self._parameters)
        _the_run = self
        process.print_stacks_of_fatal_errors()
        atexit.register(self._end_launcher)
        self._watch_the_end()

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

    def _initial_weights(self) -> Path:
        """A file with the weights as they are. The worker reads it if its run begins again.

        Its name follows from the weights, so the workers of a directory share one file.
        """
        flat = self._memory.host.numpy()
        digest = hashlib.blake2b(flat.data, digest_size=8).hexdigest()
        path = self._directory / f"initial-{digest}.safetensors"
        if not path.exists():
            self._directory.mkdir(parents=True, exist_ok=True)
            safetensors.write(path, {**self._parameters.tensors(), **self._statistics.tensors()})
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

    def _data_digest(self, keyed: samples.SeededDataset, count: int, validation: Any) -> str:
        """A digest of what this worker knows of the data: every worker must have the same."""
        parts = [samples.fingerprint(keyed, count)]
        if validation is not None:
            held_out = samples.SeededDataset(validation, self._seed)
            parts.append(samples.fingerprint(held_out, len(validation)))
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
                "the loop was interrupted in run.backward, whose gradients cannot be computed "
                "twice: end this process, and resume the run's directory"
            )
        self._evaluator.check()
        self._guard.begin()
        self._start()
        try:
            yield from self._micro_batches()
        finally:
            self._guard.pause()
        self._conclude()

    def _micro_batches(self) -> Iterator[Any]:
        while True:
            # A loop that was interrupted goes on with the turn that it has left.
            is_again = self._turn is not None
            self._memory.settle()
            self._turn = self._turn or self._engine.next()
            if self._turn is None:
                break
            step, shard, micro = self._turn[:3]
            if step == 0:
                self._memory.update(self._engine.writes())
                self._statistics.load()
                self._engine.evaluated(*self._evaluator.of(self._turn[6]))
                self._turn = None
                continue
            self._step = step
            batch = self._batches.of((step, shard, micro))
            key = seeds.key(seeds.MICRO_BATCH, self._seed, step, shard, micro)
            seeds.seed_generators(key, self.device)
            self._engine.parameters()
            self._memory.update(self._engine.writes())
            self._statistics.begin(self._turn[3], is_again)
            self._probe.begin(batch, is_again)
            self._scalars.begin()
            self._guard.begin_turn()
            yield devices.moved(batch, self.device)
            self._guard.end_turn()
            if self._turn is not None:
                raise RuntimeError("the loop's body did not call run.backward(loss)")

    def evaluate(self, function: Function | None = None, *, every: int | None = None) -> Any:
        """Marks the function that evaluates held-out samples: ``@run.evaluate``, or
        ``@run.evaluate(every=500)``, before the loop.

        It gets batches of ``validation`` after the last step, in ``eval`` mode and without
        gradients. It returns the mean loss of a batch, or a dict with ``"loss"`` and one more mean.
        The means over all samples are in the report, as its validation loss and metric.

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

    def backward(self, loss: torch.Tensor, weight: float | None = None) -> None:
        """Computes the gradients of a micro-batch's mean loss, and hands them to their owners.

        In place of ``loss.backward()``, ``optimizer.step()`` and ``optimizer.zero_grad()``.

        ``weight``: the number of units that the loss is a mean over, such as the micro-batch's
        tokens. The loss of the step is then the mean over all its units. A micro-batch without a
        unit counts for nothing, whatever its loss. Give it in every turn or in none. In a run with
        ``weights`` it is compared with them.
        """
        if self._turn is None:
            raise RuntimeError("run.backward is called once in each turn of the loop over the run")
        if loss.numel() != 1:
            raise ValueError(f"the loss has {loss.numel()} elements: give the mean, one number")
        self._probe.check(loss)
        _, data_shard, _, is_first, is_last, scale, numbers = self._turn
        weighs = self._weights.of(numbers, weight)
        self._is_in_backward = True
        value = self._memory.number(loss)
        self._gradients.begin(is_first, is_last)
        if weighs > 0.0:  # the mean over no unit is not a number
            (loss * (scale * weighs)).backward()
        self._gradients.finish()
        statistics = self._publish_statistics(data_shard, scale) if is_last else None
        self._fixed_buffers.check()
        self._probe.end()
        self._turn, self._is_in_backward = None, False
        self._engine.done(value() if weighs > 0.0 else 0.0, weighs, self._scalars.take())
        self._memory.release()
        del statistics  # the engine has read it

    def log(self, values: dict[str, Any] | None = None, **scalars: Any) -> None:
        """Logs numbers of the micro-batch before :meth:`backward`: ``run.log(accuracy=hits)``.

        The line of the step has the mean of each over the step's micro-batches, which count as they
        do in the loss. At most 16 names of at most 32 letters, digits and ``_ - . /``. A dict takes
        names that are no keywords: ``run.log({"train/top-1": hits})``.
        """
        if self._turn is None:
            raise RuntimeError("run.log is called in a turn of the loop, before run.backward")
        self._scalars.log({**(values or {}), **scalars})

    def export(self, path: str | os.PathLike[str]) -> None:
        """Writes model, optimizer and schedule after the loop, for ``torch.load``.

        The file has a dict with ``"model"``, ``"optimizer"`` and ``"schedule"``, each of them for
        ``load_state_dict``, and ``"step"``. So a plain loop of PyTorch can go on. The optimizer's
        state is that of the last checkpoint, so the run must keep checkpoints.
        """
        if not self._has_ended:
            raise RuntimeError("there is no trained model here: it comes after the loop")
        found = self._engine.state()
        if found is None:
            raise RuntimeError(
                "the run keeps no checkpoints, and they have the optimizer's state: launch it with "
                "--checkpoint-every"
            )
        updates, vectors = found[0], export.vectors(found[2])
        self._parameters.flat.copy_(vectors[0])
        self._statistics.load()
        with export.Advanced(self._optimizer, self._schedule, self.steps):
            optimizer = export.optimizer_state(
                self._optimizer, self._rule, self._parameters.trained, vectors[1:], updates
            )
            schedule = self._schedule and self._schedule.state_dict()
            content = {"model": export.on_host(self._model.state_dict()), "optimizer": optimizer}
            export.write(path, {**content, "schedule": schedule, "step": self.steps})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model's ``state_dict`` as safetensors, after the loop.

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
        safetensors.write(path, self._model.state_dict())

    def _publish_statistics(self, data_shard: int, scale: float) -> torch.Tensor | None:
        data_shards, accumulate = self._shape
        # The factor of the loss is the loss scale, a power of two, over the number of passes.
        loss_scale = 2.0 ** round(math.log2(scale * data_shards * accumulate))
        return self._statistics.publish(self._engine, data_shard, data_shards, loss_scale)

    def _conclude(self) -> None:
        """The worker has ended: after its run, or before."""
        code, words = self._engine.ended() or (1, "error: the worker has ended")
        self._has_ended = True
        self._guard.end()
        if code != 0:
            print(words, file=sys.stderr, flush=True)
            raise SystemExit(code)
        if self._measured is not None:
            self._measure_gpu(Path(self._measured))
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
            # A worker that joined late may not have all trained weights itself.
            tensors = safetensors.read_f32(trained)
            self._parameters.load(tensors)
            self._statistics.take(tensors)
            self._is_complete = True

    def _measure_gpu(self, file: Path) -> None:
        """Adds what the GPU has taken to what the engine has measured."""
        peak = devices.peak_bytes(self.device)
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
            self._parameters.flat.copy_(export.vectors(found[2])[0])
            self._statistics.load()
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
