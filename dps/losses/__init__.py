"""Losses, for `loss=` where a name does not say enough.

Nothing here may know models, servers or modes.
"""

from dps.losses.base import Loss
from dps.losses.classification import Hinge, LogLoss, ModifiedHuber, SquaredHinge
from dps.losses.regression import (
    EpsilonInsensitive,
    Gamma,
    Huber,
    Poisson,
    Quantile,
    SquaredError,
)

__all__ = [
    "EpsilonInsensitive",
    "Gamma",
    "Hinge",
    "Huber",
    "LogLoss",
    "Loss",
    "ModifiedHuber",
    "Poisson",
    "Quantile",
    "SquaredError",
    "SquaredHinge",
]


def __dir__() -> list[str]:
    return __all__
