"""Losses for `loss=`, if a name does not suffice.

To add one, write a class in ``classification.py`` or ``regression.py``, and name it here.
"""

from typing import Literal

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

#: Names of losses, for type checkers.
LabelLoss = Literal["log_loss", "hinge", "squared_hinge", "modified_huber"]
NumberLoss = Literal[
    "squared_error", "huber", "epsilon_insensitive", "quantile", "poisson", "gamma"
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
