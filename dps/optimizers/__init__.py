"""Optimizers and learning rate schedules, for `optimizer=` and `learning_rate=`.

To add an optimizer, write a class and name it here.
"""

from typing import Literal

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

#: Optimizers by name, and the names for type checkers.
OPTIMIZERS: dict[str, type[Optimizer]] = {
    "sgd": SGD,
    "momentum": Momentum,
    "adagrad": Adagrad,
    "scaled_adagrad": ScaledAdagrad,
    "adam": Adam,
    "adamw": AdamW,
}
OptimizerName = Literal["sgd", "momentum", "adagrad", "scaled_adagrad", "adam", "adamw"]


def __dir__() -> list[str]:
    return __all__
