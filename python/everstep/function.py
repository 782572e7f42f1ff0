"""``everstep.train``: a run as one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from everstep.run import Run

#: From the model and a batch to its mean loss, or to that and a dict of other means.
Loss = Callable[[torch.nn.Module, Any], Any]


def train(
    *,
    model: torch.nn.Module | Callable[[], torch.nn.Module],
    loss: Loss,
    optimizer: Callable[[torch.nn.Module], torch.optim.Optimizer],
    data: Any,
    schedule: Callable[[torch.optim.Optimizer], Any] | None = None,
    validation: Any = None,
    evaluate_every: int | None = None,
    seed: int = 1,
    callbacks: Sequence[Callable[[Run, float], None]] = (),
    save: str | None = None,
    **settings: Any,
) -> SimpleNamespace:
    """Trains a model, and returns the report of the run.

    ::

        report = everstep.train(
            model=make_model, data=images, loss=lambda model, batch: F.cross_entropy(
                model(batch[0]), batch[1]
            ),
            optimizer=lambda model: torch.optim.AdamW(model.parameters()),
            steps=1000, data_shards=8, micro_batch=16,
        )

    ``model`` makes the model, with generators that are seeded by ``seed``. ``optimizer`` and
    ``schedule`` make theirs. ``loss`` also evaluates the samples of ``validation``. If it returns a
    dict of other means besides, the report has the first one as its metric. ``evaluate_every`` is
    the ``every`` of :meth:`everstep.Run.evaluate`.

    Each of the ``callbacks`` gets the run and the loss after each micro-batch of this process. A
    micro-batch may be computed more than once. ``save``: the file that gets the trained model. All
    other arguments are those of :class:`everstep.Run`.
    """
    torch.manual_seed(seed)
    made = model if isinstance(model, torch.nn.Module) else model()
    own_optimizer = optimizer(made)
    own_schedule = schedule(own_optimizer) if schedule is not None else None
    run = Run(
        made, own_optimizer, own_schedule, data=data, validation=validation, seed=seed, **settings
    )
    if validation is not None:
        run.evaluate(lambda batch: _with_metric(loss(made, batch)), every=evaluate_every)
    for batch in run:
        value = _parts(loss(made, batch))[0]
        run.backward(value)
        for callback in callbacks:
            callback(run, float(value.detach()))
    if save is not None:
        run.save(save)
    return run.report


def _parts(found: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    return found if isinstance(found, tuple) else (found, {})


def _with_metric(found: Any) -> dict[str, Any]:
    value, others = _parts(found)
    return {"loss": value, **dict(list(others.items())[:1])}
