"""Optimizers and learning rate schedules, for `optimizer=` and `learning_rate=`.

Nothing here may know models, servers or modes.
"""

from dps.optimizers.adaptive import Adagrad, Adam, AdamW, ScaledAdagrad
from dps.optimizers.averaged import Averaged
from dps.optimizers.base import Optimizer
from dps.optimizers.descent import SGD, Momentum
from dps.optimizers.schedules import Constant, Cosine, InvScaling, Schedule, Step

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Averaged",
    "Constant",
    "Cosine",
    "InvScaling",
    "Momentum",
    "Optimizer",
    "ScaledAdagrad",
    "Schedule",
    "Step",
]


def __dir__() -> list[str]:
    return __all__
