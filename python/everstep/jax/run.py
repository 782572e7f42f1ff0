"""``everstep.jax.Run``: the loop of a script, on as many workers as there are."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from everstep import process, samples, tensor_file
from everstep.evaluation import Evaluator, Function
from everstep.jax import environment
from everstep.jax.batches import Batches, stacked
from everstep.jax.memory import Memory, parts_of_first_device
from everstep.jax.optimizer import Optimizer, check
from everstep.jax.program import Found, Loss, Program
from everstep.jax.tree import FlatTree
from everstep.scalars import Scalars
from everstep.script import ScriptRun, step_count
from everstep.weights import Weights

#: What a script is told where passes differ.
UNEQUAL = (
    "this model does not repeat here: equal passes over the first micro-batch have unequal results, "
    "so no other worker and no other run could have the same bits. JAX names no operation as the "
    "cause, so look for callbacks to Python (pure_callback, io_callback), for operations of a GPU "
    "that XLA does not repeat, and for random numbers that do not follow from the key"
)


class Result(NamedTuple):
    """What a turn has computed: one micro-batch. Another worker may compute the same again."""

    #: The step, from 1.
    step: int
    data_shard: int
    micro_batch: int
    loss: float
    metrics: dict[str, float]


class Run(ScriptRun):
    """A loss in training. Iterating over it computes micro-batches, until the run is complete.

    ::

        run = everstep.jax.Run(loss, params, data=dataset, optimizer=everstep.jax.AdamW(1e-3),
                               steps=1000, data_shards=8, micro_batch=16)
        for result in run:
            print(result.step, result.loss)

    Each turn computes one micro-batch of one data shard of one step, and yields its
    :class:`Result`. The result may be thrown away when a worker dies, so the loop's body counts
    nothing itself: :attr:`step` is there. Every worker runs the same script, and must make the same
    parameters: make them with a key of a fixed seed.

    ``loss``: a pure function from parameters, batch and key to the mean loss over the batch's rows,
    or to ``(loss, metrics)``. The key follows from seed, step, data shard and micro-batch.
    ``metrics`` is a dict of numbers, of which the step's line has the means. ``params``: a pytree of
    float32 arrays, with the initial values. ``optimizer``: :class:`everstep.jax.AdamW`, ``Adam``,
    ``SGD`` or ``Lion``.

    ``statistics``: a pytree of float32 arrays that the loss changes, such as the ``batch_stats`` of
    Flax. Then the loss is called with ``(params, statistics, batch, key)``, and returns ``(loss,
    statistics)`` or ``(loss, statistics, metrics)``. The mean of all data shards' changes is added
    in each step.

    ``data``: a map-style data set, whose samples are pytrees of arrays and numbers. ``collate`` makes
    a batch of a list of samples; by default it stacks them. The other arguments are those of
    :class:`everstep.Run`. ``validation`` has held-out samples, for the function that
    :meth:`evaluate` marks, which is called with parameters, statistics if there are any, and batch.

    ``devices``: the devices of this process that share the rows of each micro-batch, by default
    ``jax.local_devices()``.
    """

    _HAND_OVER = "the hand-over of a micro-batch"

    def __init__(
        self,
        loss: Loss,
        params: Any,
        *,
        data: Any,
        optimizer: Optimizer,
        statistics: Any = None,
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
        collate: Callable[[list[Any]], Any] | None = None,
        devices: Sequence[Any] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(seed)
        check(optimizer)
        count = samples.check(data)
        if count == 0:
            raise ValueError("the data set is empty: there is nothing to train on")
        self.steps = step_count(steps, epochs, count, data_shards * micro_batch * accumulate)
        self._weights = Weights(weights, count)
        self._data_shards = data_shards
        self._params = FlatTree(params, "params")
        if self._params.end == 0:
            raise ValueError("params has no array with an element: there is nothing to train")
        self._statistics = (
            None if statistics is None else FlatTree(statistics, "statistics", self._params.end)
        )
        self.devices = list(devices or jax.local_devices())
        # The threads of XLA are there now, and those of the engine are not.
        process.give_way(_threads())
        self._program = Program(loss, self._params, self._statistics, self.devices, seed)
        self._memory = Memory(self._program.count(), self._program.whole)
        self._params.write(params, self._memory.host)
        if self._statistics is not None:
            self._statistics.write(statistics, self._memory.host)
        keyed = samples.SeededDataset(data, seed)
        self._batches = Batches(keyed, micro_batch, collate)
        self._first = samples.FirstBatch()
        self._scalars = Scalars(self._memory)
        self._evaluator = Evaluator(validation, seed, collate or stacked, self._evaluate)
        stated = {
            "name": name,
            "samples": count,
            "data_shards": data_shards,
            "micro_batch": micro_batch,
            "accumulate": accumulate,
            "clip_norm": clip_norm,
            "copies": copies,
        }
        self._make_engine(stated, optimizer.rule(self._params, self.steps), keyed, validation)
        #: What earlier micro-batches of the data shard have made.
        self._carried: Any = None
        self._sums: list[Any] | None = None
        self._compiled: dict[Function, Any] = {}
        self._take_the_process()

    def _make_engine(
        self,
        stated: dict[str, Any],
        rule: dict[str, Any],
        keyed: samples.SeededDataset,
        validation: Any,
    ) -> None:
        """Makes the engine with what the script has stated, and with what follows from it."""
        settings = {
            **stated,
            "held_out": 0 if validation is None else samples.check(validation),
            "update_threads": self._threads if self._is_on_cpu() else None,
            "loss_scaling": False,
            "processor": environment.processor(self.devices),
            "data_digest": self._data_digest(keyed, stated["samples"], validation),
            "fixed_digest": self._shapes(),
            "jax": environment.statement(self.devices),
        }
        statistics = [] if self._statistics is None else self._statistics.layout()
        self._state(
            settings,
            rule,
            self._params.layout(),
            [(name, shape, "mean") for name, shape in statistics],
            self._memory.host,
            lambda path: tensor_file.write(path, self._entries()),
        )

    @property
    def params(self) -> Any:
        """A copy of the parameters, as a pytree of JAX's arrays. In the loop they are those of the
        last turn, and after it the trained ones."""
        return self._tree(self._params)

    @property
    def statistics(self) -> Any:
        """A copy of the statistics, as :attr:`params`."""
        return None if self._statistics is None else self._tree(self._statistics)

    @property
    def has_model(self) -> bool:
        """Whether this process has the trained parameters. A worker in another directory than its
        launcher's may have none."""
        return self._is_complete

    def _tree(self, tree: FlatTree) -> Any:
        if self._has_ended and not self._is_complete:
            raise RuntimeError(
                "this worker has no trained model. It is in the directory of the launcher, or where "
                "`everstep run status` says"
            )
        # The engine writes its memory later, and JAX's arrays never change.
        return jax.tree_util.tree_map(jax.numpy.asarray, tree.of(self._memory.host.copy()))

    def _micro_batches(self) -> Iterator[Result]:
        while True:
            # A loop that was interrupted goes on with the turn that it has left.
            self._turn = self._turn or self._engine.next()
            if self._turn is None:
                break
            step, shard, micro = self._turn[:3]
            if step == 0:
                self._engine.evaluated(*self._evaluator.of(self._turn[6]))
                self._turn = None
                continue
            self._step = step
            if self._engine.is_diagnosing():
                raise RuntimeError(UNEQUAL)
            batch = self._batches.of(self._engine.rows(step, shard, micro), (step, shard, micro))
            self._first.check(batch)
            self._engine.parameters()
            yield self._compute(batch)

    def _compute(self, batch: Any) -> Result:
        """Computes the turn's micro-batch, and hands the gradients to their owners."""
        assert self._turn is not None, "a turn is under way"
        step, shard, micro, is_first, is_last, scale, numbers = self._turn
        weight = self._weights.of(numbers, None)
        if is_first:
            # The data shard before may have been given up between its micro-batches.
            self._carried = self._sums = None
        flat = self._memory.on_devices(self._engine.writes())
        place = np.array([step, shard, micro], np.uint32)
        factor = np.float32(scale * weight)
        found: Found = self._program.compute(flat, self._carried, batch, place, factor, self._sums)
        parts = parts_of_first_device(found.gradients) if is_last else []
        # The engine may write the flat vector as soon as this thread asks for its next turn.
        jax.block_until_ready(found)
        loss, metrics = jax.device_get((found.loss, found.metrics))
        metrics = {name: float(value) for name, value in metrics.items()}
        result = Result(step, shard, micro, float(loss), metrics)
        self._scalars.begin()
        self._scalars.log(metrics)
        self._is_in_backward = True
        if is_last:
            self._publish(parts, found.statistics)
        carried = (None, None) if is_last else (found.statistics, found.gradients)
        self._carried, self._sums = carried
        self._turn, self._is_in_backward = None, False
        self._engine.done(result.loss, weight, self._scalars.take())
        self._memory.release()
        return result

    def _publish(self, gradients: list[Any], following: Any) -> None:
        # The backward pass has ended with the first layers.
        for offset, gradient in reversed(list(zip(self._program.offsets, gradients))):
            self._memory.publish(self._engine, offset, gradient)
        if self._statistics is not None:
            begin, end = self._statistics.offset, self._statistics.end
            now = np.asarray(following.addressable_data(0))
            change = (now - self._memory.host[begin:end]) * np.float32(1.0 / self._data_shards)
            self._memory.publish(self._engine, begin, change)

    def _evaluate(self, function: Function, batch: Any, _key: int) -> Any:
        """Calls the script's function with the parameters and a batch of held-out samples."""
        if function not in self._compiled:
            self._compiled[function] = jax.jit(self._whole(function), out_shardings=self._program.whole)
        flat = self._memory.on_devices(self._engine.writes())
        batch = self._batches.arrays(batch)
        is_shared = self._program.can_share(batch)
        sharding = self._program.rows if is_shared else self._program.whole
        return jax.block_until_ready(self._compiled[function](flat, jax.device_put(batch, sharding)))

    def _whole(self, function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
        """A function of the flat vector and a batch."""
        trees = [self._params] + ([self._statistics] if self._statistics is not None else [])
        return lambda flat, batch: function(*(tree.of(flat) for tree in trees), batch)

    def _shapes(self) -> str:
        """A digest of what the program takes and makes: every worker's is equal. Refuses a loss
        that does not fit."""
        metrics = self._program.check(self._batches.example)
        shapes = jax.tree_util.tree_map(lambda it: f"{it.dtype}{it.shape}", self._batches.example)
        return hashlib.blake2b(f"{metrics} {shapes}".encode()).hexdigest()

    def _entries(self) -> dict[str, tensor_file.Entry]:
        found = self._params.entries(self._memory.host)
        if self._statistics is not None:
            found |= self._statistics.entries(self._memory.host)
        return found

    def _is_on_cpu(self) -> bool:
        return bool(self.devices[0].platform == "cpu")

    def _take_model(self, path: Path) -> None:
        found = tensor_file.read_f32(path)
        self._params.take(found, self._memory.host)
        if self._statistics is not None:
            self._statistics.take(found, self._memory.host)

    def _take_vector(self, data: bytes) -> None:
        self._memory.host[:] = np.frombuffer(data, np.float32)

    def _write_model(self, path: Path) -> None:
        tensor_file.write(path, self._entries())

    def _peak_bytes(self) -> int | None:
        if self._is_on_cpu():
            return None
        told = (device.memory_stats() or {} for device in self.devices)
        return sum(int(it.get("peak_bytes_in_use", 0)) for it in told)


def _threads() -> list[int] | None:
    """All threads of this process, if the system names them."""
    try:
        return [int(thread) for thread in os.listdir("/proc/self/task")]
    except OSError:
        return None
