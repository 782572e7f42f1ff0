"""``everstep.lightning.fit``: Everstep trains a module of Lightning.

Modules of the packages ``lightning`` and ``pytorch_lightning`` work alike, since this file imports
neither. :mod:`everstep.lightning_setup` reads what a module says of its optimizer and its data.
"""

from __future__ import annotations

import contextlib
import fcntl
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from everstep import lightning_setup as setup
from everstep.run import Run, step_count

#: Hooks that get a batch before the step, in this order.
BATCH_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


def fit(
    module: Any,
    data: Any = None,
    validation: Any = None,
    *,
    data_shards: int,
    steps: int | None = None,
    epochs: int | None = None,
    accumulate: int = 1,
    evaluate_every: int | None = None,
    seed: int = 1,
    **settings: Any,
) -> Run:
    """Trains a ``LightningModule`` on as many workers as there are, and returns the run.

    ::

        run = everstep.lightning.fit(module, datamodule, epochs=10, data_shards=8)
        print(run.report.state_hash)

    It takes the place of ``Trainer.fit``. ``data`` is a ``LightningDataModule`` or a
    ``DataLoader``, and by default the module's own ``train_dataloader``. ``validation`` is a
    ``DataLoader``. Batch size, collation and loading processes are those of the loader of training.
    The order of the samples is Everstep's. A step's batch has ``data_shards`` x ``accumulate``
    micro-batches. Seed the generators before the module is made.

    ``training_step`` returns the mean loss, also in a dict. ``self.log`` in it is
    :meth:`everstep.Run.log`. The validation loss of the report is the first value with ``loss`` in
    its name that ``validation_step`` logs, or else the loss that it returns. The metric is the
    first other value. ``evaluate_every`` is the ``every`` of :meth:`everstep.Run.evaluate`.

    ``batch_idx`` and ``self.global_step`` are the number of steps before this one. A schedule moves
    at the end of an epoch unless its ``interval`` is ``"step"``, as in Lightning. All other
    arguments are those of :class:`everstep.Run`.
    """
    base = setup.check_module(module)
    datamodule = data if setup.is_datamodule(data) else None
    owners = [it for it in (datamodule, module) if it is not None]
    facts = TrainerFacts(datamodule, accumulate)
    torch.manual_seed(seed)
    _prepare(module, owners, facts)
    loader = setup.loader(owners, None if datamodule is not None else data, "train_dataloader")
    held_out = setup.held_out(owners, base, validation, loader)
    batch = data_shards * accumulate * loader.batch_size
    facts.begin(step_count(steps, epochs, len(loader.dataset), batch), epochs, batch, loader)
    optimizer, schedule = setup.configured(module.configure_optimizers(), facts.epochs_per_step)
    run = Run(
        module,
        optimizer,
        schedule,
        data=loader.dataset,
        validation=None if held_out is None else held_out.dataset,
        collate=loader.collate_fn,
        steps=facts.max_steps,
        data_shards=data_shards,
        micro_batch=loader.batch_size,
        accumulate=accumulate,
        seed=seed,
        **{"loaders": loader.num_workers, **settings},
    )
    own = _Steps(module, owners, run)
    if held_out is not None:
        run.evaluate(own.validate, every=evaluate_every)
    _train(run, own, facts)
    for owner in owners:
        owner.teardown("fit")
        owner.trainer = None
    return run


def _prepare(module: Any, owners: list[Any], facts: TrainerFacts) -> None:
    """Has module and data prepare themselves, in the order of Lightning."""
    for owner in owners:
        owner.trainer = facts
    with _one_process_at_a_time():
        for owner in owners:
            owner.prepare_data()
    for owner in owners:
        owner.setup("fit")
    module.configure_model()


def _train(run: Run, own: _Steps, facts: TrainerFacts) -> None:
    module = own.module
    with own.logged():
        module.on_fit_start()
        module.on_train_start()
        for batch in run:
            facts.enter(run.step)
            run.backward(own.train(batch))
        module.on_train_end()
        module.on_fit_end()


class TrainerFacts:
    """What a module may ask of ``self.trainer``. There is no ``Trainer`` of Lightning."""

    def __init__(self, datamodule: Any, accumulate: int) -> None:
        self.datamodule = datamodule
        self.accumulate_grad_batches = accumulate
        self.max_steps = -1
        self.max_epochs: int | None = None
        self.global_step = self.current_epoch = 0
        self.logger = self.progress_bar_callback = None
        self.loggers: list[Any] = []
        self.training, self.validating, self.sanity_checking = True, False, False
        self.is_global_zero, self.fast_dev_run, self.barebones = True, False, False

    def begin(self, steps: int, epochs: int | None, batch: int, loader: Any) -> None:
        """The data is there, and so many steps of so many samples follow."""
        self.max_steps = self.estimated_stepping_batches = steps
        self.max_epochs = epochs
        self.train_dataloader = loader
        #: Samples of a step, and of an epoch.
        self.epochs_per_step = batch, len(loader.dataset)

    def enter(self, step: int) -> None:
        """This step is computed, the first one of which is 1."""
        batch, samples = self.epochs_per_step
        self.global_step = step - 1
        self.current_epoch = self.global_step * batch // samples

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"trainer.{name}: everstep.lightning.fit trains without a Trainer of Lightning. Give "
            "the module the value itself, or write the loop with everstep.Run"
        )


class _Steps:
    """``training_step`` and ``validation_step``, and what they log."""

    def __init__(self, module: Any, owners: list[Any], run: Run) -> None:
        self.module = module
        self._run = run
        self._training = _with_number(module.training_step)
        self._validation = _with_number(module.validation_step)
        hooks = [setup.overridden(owners, name) for name in BATCH_HOOKS]
        self._hooks = [(name, hook) for name, hook in zip(BATCH_HOOKS, hooks) if hook is not None]
        #: What the evaluation under way has logged. None in training.
        self._values: dict[str, Any] | None = None
        #: The metrics that forget after each batch.
        self._metrics: list[Any] = []

    @contextlib.contextmanager
    def logged(self) -> Iterator[None]:
        """Within it ``self.log`` of the module, and of the modules in it, is the run's."""
        modules = [it for it in self.module.modules() if setup.is_module(it)]
        for each in modules:
            each.log = self._log
        try:
            yield
        finally:
            for each in modules:
                del each.log

    def train(self, batch: Any) -> torch.Tensor:
        """The mean loss of a micro-batch."""
        found = self._training(self._ready(batch), self._run.step - 1)
        self._reset_metrics()
        loss = found.get("loss") if isinstance(found, Mapping) else found
        if not isinstance(loss, torch.Tensor):
            raise TypeError(
                f"training_step returned {type(found).__name__}, and no loss: return the mean "
                'loss, or a dict with "loss". Everstep skips no micro-batch'
            )
        return loss

    def validate(self, batch: Any) -> dict[str, Any]:
        """The mean loss of a batch of held-out samples, and one more mean."""
        values: dict[str, Any] = {}
        self._values = values
        try:
            found = self._validation(self._ready(batch), 0)
        finally:
            self._values = None
        self._reset_metrics()
        return setup.validation_means(found, values)

    def _ready(self, batch: Any) -> Any:
        """The batch as the hooks of module and data make it."""
        for name, hook in self._hooks:
            where = (self._run.device,) if name == "transfer_batch_to_device" else ()
            batch = hook(batch, *where, 0)
        return batch

    def _log(self, name: str, value: Any, *_: Any, reduce_fx: Any = "mean", **__: Any) -> None:
        if reduce_fx not in ("mean", torch.mean):
            raise ValueError(
                f"self.log: {name} has reduce_fx={reduce_fx!r}, and Everstep logs means"
            )
        if hasattr(value, "compute"):
            self._metrics.append(value)
            value = _value_of_batch(name, value)
        if self._values is None:
            self._run.log({name: value})
        else:
            self._values[name] = value

    def _reset_metrics(self) -> None:
        for metric in self._metrics:
            metric.reset()
        self._metrics.clear()


def _value_of_batch(name: str, metric: Any) -> Any:
    """The value that a metric of ``torchmetrics`` had for the last batch alone."""
    value = getattr(metric, "_forward_cache", None)
    if value is None:
        raise ValueError(
            f"self.log: {name} is a metric over all batches so far, and no process sees all of "
            "them: call the metric in the step, as in self.accuracy(logits, targets), and not its "
            "update"
        )
    return value


def _with_number(step: Callable[..., Any]) -> Callable[[Any, int], Any]:
    """A step that gets a batch and its number, or the batch alone if it takes no more."""
    parameters = list(inspect.signature(step).parameters.values())
    if parameters and parameters[0].name == "dataloader_iter":
        raise TypeError(f"{step.__name__} takes dataloader_iter: Everstep gives it the batch")
    plain = [it for it in parameters if it.kind in (it.POSITIONAL_ONLY, it.POSITIONAL_OR_KEYWORD)]
    takes_number = len(plain) > 1 or any(it.kind is it.VAR_POSITIONAL for it in parameters)
    return step if takes_number else lambda batch, _: step(batch)


@contextlib.contextmanager
def _one_process_at_a_time() -> Iterator[None]:
    """Processes of one directory prepare data after each other: the first one downloads."""
    directory = os.environ.get("EVERSTEP_DIR")
    if directory is None:
        yield
        return
    Path(directory).mkdir(parents=True, exist_ok=True)
    with open(Path(directory) / "prepare.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
