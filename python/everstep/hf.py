"""``everstep.hf.Trainer``: a ``transformers.Trainer`` that leaves the steps to Everstep."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
import transformers
from transformers.trainer_utils import TrainOutput

from everstep import data as samples
from everstep.run import Run

#: Arguments with which a trainer changes its model as it begins, and what to do instead.
UNTAKEN = {
    "gradient_checkpointing": "call model.gradient_checkpointing_enable() before",
    "activation_checkpointing": "call the model's own method for it before",
    "torch_compile": "call model.compile() before",
    "use_liger_kernel": "apply the kernels to the model before",
    "neftune_noise_alpha": "add the noise in the model",
    "load_best_model_at_end": "load a checkpoint of the run after train()",
    "group_by_length": "sort the data set, or pad to one length",
}
#: Methods of a trainer that take no part in a run.
UNCALLED = ("training_step", "_get_train_sampler")


class Trainer(transformers.Trainer):
    """A ``transformers.Trainer`` that trains on as many workers as there are.

    ``train()`` is Everstep's. Loss, data, collator, precision, optimizer and scheduler are those of
    the trainer, and ``evaluate``, ``predict`` and ``save_model`` are unchanged: each process has
    the trained model after ``train()``. A step's batch has ``data_shards`` x
    ``gradient_accumulation_steps`` x ``per_device_train_batch_size`` samples, in an order of
    Everstep. Every process must make the same model: call ``transformers.set_seed`` before.

    The loss of a step is the mean over all items of the step, such as its tokens, as the trainer
    counts them: see :meth:`everstep.Run.backward`. It is the mean of the micro-batches' means if
    the trainer counts none, or has ``loss_is_scaled_for_ga = False``.

    With an ``eval_strategy`` the run evaluates ``eval_dataset``, too, and its mean losses are in
    the metrics and in the report. Callbacks, checkpoints and logging of the trainer take no part in
    training: the result of a micro-batch may be thrown away, and the launcher writes the metrics.
    :attr:`run` is the ``everstep.Run``.
    """

    def __init__(self, *arguments: Any, data_shards: int, copies: int = 2, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._data_shards, self._copies = data_shards, copies
        #: The run, once ``train()`` has begun.
        self.run: Run | None = None
        if settings.get("callbacks"):
            _warn_of_callbacks()

    def add_callback(self, callback: Any) -> None:
        """Adds a callback of the trainer, which ``train()`` does not call."""
        super().add_callback(callback)
        if hasattr(self, "run"):  # transformers' own __init__ adds some that only show progress
            _warn_of_callbacks()

    def train(  # type: ignore[override]
        self, resume_from_checkpoint: str | bool | None = None, **unknown: Any
    ) -> TrainOutput:
        """Trains to the end of the run, or ends the process, as a loop over a run does."""
        self._check(resume_from_checkpoint, unknown)
        settings = self.args
        micro_batch = settings.per_device_train_batch_size
        accumulate = settings.gradient_accumulation_steps
        batch = self._data_shards * micro_batch * accumulate
        steps, epoch = settings.max_steps, samples.check(self.train_dataset) / batch
        if steps <= 0:
            steps = math.ceil(settings.num_train_epochs * epoch)
        self.create_optimizer_and_scheduler(num_training_steps=steps)
        assert self.model is not None and self.optimizer is not None
        # Its samples have no columns that the model does not take.
        loader = self.get_train_dataloader()
        every = self._evaluates_each(steps, epoch)
        self.run = Run(
            self.model.train(),
            self.optimizer,
            self.lr_scheduler,
            data=loader.dataset,
            validation=None if every is None else self.get_eval_dataloader().dataset,
            collate=loader.collate_fn,
            steps=steps,
            data_shards=self._data_shards,
            micro_batch=micro_batch,
            accumulate=accumulate,
            clip_norm=settings.max_grad_norm or None,
            seed=settings.seed,
            copies=self._copies,
            loaders=settings.dataloader_num_workers,
            loss_scaling=settings.fp16,
        )
        if every is not None:
            self.run.evaluate(self._mean_loss, every=every)
        for inputs in self.run:
            self._backward(self.run, inputs)
        self.state.global_step = steps
        # A worker elsewhere may not know it.
        loss = (self.run.report.loss or {}).get("last", math.nan)
        return TrainOutput(steps, loss, {"train_loss": loss, "train_steps": steps})

    def _check(self, resume_from_checkpoint: str | bool | None, unknown: dict[str, Any]) -> None:
        """Refuses what a run does in another way."""
        given = [name for name, value in unknown.items() if value is not None]
        if resume_from_checkpoint or given:
            name = given[0] if given else "resume_from_checkpoint"
            raise ValueError(f"everstep.hf.Trainer.train takes no {name}")
        if self.train_dataset is None:
            raise ValueError("everstep.hf.Trainer: train_dataset is missing")
        for name, instead in UNTAKEN.items():
            if getattr(self.args, name, None):
                raise ValueError(f"everstep.hf.Trainer takes no {name}: {instead}")
        order = getattr(self.args, "train_sampling_strategy", "random")
        if order != "random":
            raise ValueError(
                f'everstep.hf.Trainer takes no train_sampling_strategy="{order}": the order of the '
                "samples is Everstep's, at random"
            )
        if self.args.n_gpu > 1:
            raise ValueError(
                f"everstep.hf.Trainer sees {self.args.n_gpu} GPUs, and a worker computes on one: "
                "give each worker its own by everstep launch --device cuda, or name one in "
                "CUDA_VISIBLE_DEVICES"
            )
        for name in UNCALLED:
            if getattr(type(self), name, None) is not getattr(transformers.Trainer, name, None):
                raise TypeError(
                    f"{type(self).__name__}.{name} would not be called by everstep.hf.Trainer: a "
                    "run has an order of samples and steps of its own"
                )

    def _evaluates_each(self, steps: int, epoch: float) -> int | None:
        """Each how many steps the run evaluates the held-out samples. None: it does not."""
        strategy = getattr(self.args.eval_strategy, "value", self.args.eval_strategy)
        if self.eval_dataset is None or strategy == "no":
            return None
        if isinstance(self.eval_dataset, dict):
            raise ValueError(
                "everstep.hf.Trainer evaluates one eval_dataset as it trains, and has several: "
                'join them, or give eval_strategy="no" and call evaluate() after train()'
            )
        if self.compute_metrics is not None:
            warnings.warn(
                "everstep.hf.Trainer calls compute_metrics in evaluate() alone, after train(): a run "
                "has the mean losses of its evaluations",
                stacklevel=3,
            )
        if strategy != "steps":
            return max(1, math.ceil(epoch))
        stated = self.args.eval_steps or self.args.logging_steps
        return max(1, math.ceil(stated if stated >= 1.0 else stated * steps))

    def _mean_loss(self, inputs: Any) -> Any:
        with self.compute_loss_context_manager(), self.accelerator.autocast():
            assert self.model is not None
            return self.compute_loss(self.model, self._prepare_inputs(inputs))

    def _backward(self, run: Run, inputs: Any) -> None:
        """Computes a micro-batch. Its loss is the mean over its own items."""
        [inputs], items = self.get_batch_samples(iter([inputs]), 1, self.args.device)
        count_alike = getattr(self, "loss_is_scaled_for_ga", None) is False
        # Read before a GPU has anything to compute for which that would wait.
        weight = None if items is None or count_alike else float(items)
        with self.compute_loss_context_manager(), self.accelerator.autocast():
            inputs = self._prepare_inputs(inputs)
            assert self.model is not None
            loss = self.compute_loss(self.model, inputs, num_items_in_batch=items)
        assert isinstance(loss, torch.Tensor), "without its outputs"
        run.backward(loss, weight=weight)


def _warn_of_callbacks() -> None:
    warnings.warn(
        "everstep.hf.Trainer calls no callbacks: a process computes a part of the micro-batches, and "
        "some of them more than once",
        stacklevel=3,
    )
