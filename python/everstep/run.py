"""``everstep.Run``: the loop of a script, on as many workers as there are."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from everstep import data as samples, device as devices, export, optimizer as rules, process
from everstep import safetensors, seeds
from everstep.buffers import FixedBuffers, Statistics
from everstep.evaluation import Evaluator, Function
from everstep.guard import Guard, check_optimizer, model_inside
from everstep.parameters import Gradients, Parameters, fixed_digest
from everstep.probe import Probe, processor
from everstep.scalars import Scalars
from everstep.script import ScriptRun, step_count
from everstep.weights import Weights


class Run(ScriptRun):
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
        super().__init__(seed)
        model = model_inside(model)
        check_optimizer(optimizer)
        if device is not None:
            model.to(device)  # its parameters stay the same objects
        process.give_way()
        torch.set_num_threads(self._threads)
        count = samples.check(data)
        self.steps = step_count(steps, epochs, count, data_shards * micro_batch * accumulate)
        self._model = model
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
        collate = collate or samples.default_collate
        self._evaluator = Evaluator(validation, seed, collate, self._evaluate)
        stated = {
            "name": name,
            "samples": count,
            "data_shards": data_shards,
            "micro_batch": micro_batch,
            "accumulate": accumulate,
            "clip_norm": clip_norm,
            "copies": copies,
            "loss_scaling": loss_scaling,
        }
        self._make_engine(stated, keyed, validation)
        self._gradients = Gradients(self._engine, self._parameters)
        self._probe = Probe(self._engine, loss_scaling)
        self._batches = samples.Batches(
            keyed, self._engine.rows, accumulate, loaders, collate, self.device
        )
        self._guard = Guard(model, optimizer, self._parameters)
        self._take_the_process()

    def _make_engine(
        self, stated: dict[str, Any], keyed: samples.SeededDataset, validation: Any
    ) -> None:
        """Makes the engine with what the script has stated, and with what follows from it."""
        settings = {
            **stated,
            "held_out": 0 if validation is None else samples.check(validation),
            "update_threads": self._threads if self.device.type == "cpu" else None,
            "processor": processor(self.device),
            "gpu": devices.description(self.device),
            "data_digest": self._data_digest(keyed, stated["samples"], validation),
            "fixed_digest": fixed_digest(self._model, self._fixed_buffers),
            "torch": torch.__version__,
        }
        self._state(
            settings,
            self._rule,
            self._parameters.layout(),
            self._statistics.layout(),
            self._memory.host.numpy(),
            self._write_initial,
        )

    def _write_initial(self, path: Path) -> None:
        safetensors.write(path, {**self._parameters.tensors(), **self._statistics.tensors()})

    def _begin_loop(self) -> None:
        self._guard.begin()

    def _pause_loop(self) -> None:
        self._guard.pause()

    def _release_model(self) -> None:
        self._guard.end()

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

    def _evaluate(self, function: Function, batch: Any, key: int) -> Any:
        """Calls the script's function with the model in ``eval`` mode, without gradients."""
        modes = [(module, module.training) for module in self._model.modules()]
        self._model.eval()
        seeds.seed_generators(key, self.device)
        try:
            with torch.no_grad():
                return function(devices.moved(batch, self.device))
        finally:
            for module, is_training in modes:
                module.training = is_training

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

    def _publish_statistics(self, data_shard: int, scale: float) -> torch.Tensor | None:
        data_shards, accumulate = self._shape
        # The factor of the loss is the loss scale, a power of two, over the number of passes.
        loss_scale = 2.0 ** round(math.log2(scale * data_shards * accumulate))
        return self._statistics.publish(self._engine, data_shard, data_shards, loss_scale)

    def _take_model(self, path: Path) -> None:
        # A worker that joined late may not have all trained weights itself.
        tensors = safetensors.read_f32(path)
        self._parameters.load(tensors)
        self._statistics.take(tensors)

    def _take_vector(self, data: bytes) -> None:
        self._parameters.flat.copy_(torch.frombuffer(bytearray(data), dtype=torch.float32))
        self._statistics.load()

    def _write_model(self, path: Path) -> None:
        safetensors.write(path, self._model.state_dict())

    def _peak_bytes(self) -> int | None:
        return devices.peak_bytes(self.device)
