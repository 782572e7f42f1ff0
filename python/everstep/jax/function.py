"""``everstep.jax.train``: a run as one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import jax

from everstep.jax.optimizer import Optimizer
from everstep.jax.program import Loss
from everstep.jax.run import Result, Run


def train(
    loss: Loss,
    params: Any,
    data: Any,
    *,
    optimizer: Optimizer,
    statistics: Any = None,
    validation: Any = None,
    evaluate: Callable[..., Any] | None = None,
    evaluate_every: int | None = None,
    seed: int = 1,
    callbacks: Sequence[Callable[[Run, Result], None]] = (),
    save: str | None = None,
    **settings: Any,
) -> tuple[Any, SimpleNamespace]:
    """Trains parameters, and returns them and the report of the run.

    ::

        params, report = everstep.jax.train(
            loss, params, images, optimizer=everstep.jax.AdamW(1e-3), steps=1000, data_shards=8,
            micro_batch=16,
        )

    ``evaluate``: a function from parameters and batch to the mean loss of held-out samples, or to a
    dict with ``"loss"`` and one more mean. By default it is the loss itself, always with one key,
    and the first of its metrics. ``evaluate_every`` is the ``every`` of :meth:`Run.evaluate`.

    Each of the ``callbacks`` gets the run and the result of each micro-batch of this process. A
    micro-batch may be computed more than once. ``save``: the file that gets the trained tensors.
    All other arguments are those of :class:`Run`.

    With ``statistics`` the first value is a pair of parameters and statistics. The first value is
    ``None`` in a worker that has no trained model: one in another directory than its launcher's
    that reaches no store of the run.
    """
    run = Run(
        loss, params, data=data, optimizer=optimizer, statistics=statistics, validation=validation,
        seed=seed, **settings,
    )
    if validation is not None:
        key = jax.random.key(seed)
        run.evaluate(evaluate or _by_loss(loss, key, statistics is not None), every=evaluate_every)
    for result in run:
        for callback in callbacks:
            callback(run, result)
    if save is not None:
        run.save(save)
    if not run.has_model:
        return None, run.report
    return run.params if statistics is None else (run.params, run.statistics), run.report


def _by_loss(loss: Loss, key: Any, has_statistics: bool) -> Callable[..., Any]:
    """The loss as a function that evaluates held-out samples."""

    def evaluate(*arguments: Any) -> dict[str, Any]:
        found = loss(*arguments, key)
        parts = found if isinstance(found, tuple) else (found,)
        metrics = parts[2:] if has_statistics else parts[1:]
        others = dict(list(metrics[0].items())[:1]) if metrics else {}
        return {"loss": parts[0], **others}

    return evaluate
