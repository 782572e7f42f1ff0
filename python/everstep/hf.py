"""``everstep.hf.Trainer``: a ``transformers.Trainer`` that leaves the steps to Everstep."""

from __future__ import annotations

import math
from typing import Any

import transformers
from transformers.trainer_utils import TrainOutput

from everstep.run import Run


class Trainer(transformers.Trainer):
    """A ``transformers.Trainer`` that trains on as many workers as there are.

    ``train()`` is Everstep's. Loss, data, collator, optimizer and scheduler are those of the
    trainer, and ``evaluate``, ``predict`` and ``save_model`` are unchanged: each process has the
    trained model after ``train()``. A step's batch has ``data_shards`` x
    ``gradient_accumulation_steps`` x ``per_device_train_batch_size`` samples. Every process must
    make the same model: call ``transformers.set_seed`` before.

    Callbacks, checkpoints and logging of the trainer take no part in training: the result of a
    micro-batch may be thrown away, and the launcher writes the metrics. :attr:`run` is the
    ``everstep.Run``.
    """

    def __init__(self, *arguments: Any, data_shards: int, copies: int = 2, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._data_shards, self._copies = data_shards, copies
        #: The run, once ``train()`` has begun.
        self.run: Run | None = None

    def train(  # type: ignore[override]
        self, resume_from_checkpoint: str | bool | None = None, **unknown: Any
    ) -> TrainOutput:
        """Trains to the end of the run, or ends the process, as a loop over a run does."""
        given = [name for name, value in unknown.items() if value is not None]
        if resume_from_checkpoint or given:
            name = given[0] if given else "resume_from_checkpoint"
            raise ValueError(f"everstep.hf.Trainer.train takes no {name}")
        if self.train_dataset is None:
            raise ValueError("everstep.hf.Trainer: train_dataset is missing")
        settings = self.args
        micro_batch = settings.per_device_train_batch_size
        accumulate = settings.gradient_accumulation_steps
        batch = self._data_shards * micro_batch * accumulate
        steps = settings.max_steps
        if steps <= 0:
            steps = math.ceil(settings.num_train_epochs * len(self.train_dataset) / batch)
        self.create_optimizer_and_scheduler(num_training_steps=steps)
        model = self.model.train()
        run = self.run = Run(
            model,
            self.optimizer,
            self.lr_scheduler,
            data=self.train_dataset,
            collate=self.data_collator,
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
        for inputs in run:
            with self.compute_loss_context_manager():
                loss = self.compute_loss(model, self._prepare_inputs(inputs))
            run.backward(loss)
        self.state.global_step = steps
        loss = run.report.loss["last"]
        return TrainOutput(steps, loss, {"train_loss": loss, "train_steps": steps})
