"""Everstep for JAX: a pure loss function and a pytree of parameters, trained by workers that may
die, join and leave.

A script calls :func:`train`, or makes a :class:`Run` and iterates over it, and ``everstep launch``
starts the script. Importing this package sets what decides JAX's bits, so it is imported before JAX
makes its first array.
"""

from everstep.jax import environment

environment.prepare()

from everstep.jax.function import train
from everstep.jax.optimizer import SGD, Adam, AdamW, Lion
from everstep.jax.run import Result, Run

__all__ = ["SGD", "Adam", "AdamW", "Lion", "Result", "Run", "train"]
