"""Optimizers and learning rate schedules by name.

An optimizer is a class and a line in `OPTIMIZERS`. Nothing here may know models, servers or
modes.
"""

from dps.optimizers.adaptive import Adagrad, Adam, AdamW, ScaledAdagrad
from dps.optimizers.averaged import Averaged
from dps.optimizers.base import Optimizer
from dps.optimizers.descent import SGD, Momentum
from dps.optimizers.schedules import SCHEDULES, Constant, Cosine, InvScaling, Schedule, Step

__all__ = [
    "OPTIMIZERS",
    "SCHEDULES",
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
    "get_optimizer",
]

OPTIMIZERS: dict[str, type[Optimizer]] = {
    "sgd": SGD,
    "momentum": Momentum,
    "adagrad": Adagrad,
    "scaled_adagrad": ScaledAdagrad,
    "adam": Adam,
    "adamw": AdamW,
}


def get_optimizer(optimizer: str | Optimizer) -> Optimizer:
    """Return an optimizer, given itself or its name.

    Parameters
    ----------
    optimizer : str or Optimizer

    Returns
    -------
    Optimizer

    Raises
    ------
    ValueError
        If it is neither; the names there are are listed.

    Examples
    --------
    >>> get_optimizer("momentum")
    Momentum(learning_rate='auto', momentum=0.9, nesterov=False)
    """
    if isinstance(optimizer, Optimizer):
        return optimizer
    if isinstance(optimizer, str) and optimizer in OPTIMIZERS:
        return OPTIMIZERS[optimizer]()
    raise ValueError(
        f"The 'optimizer' parameter must be an Optimizer or a str among {sorted(OPTIMIZERS)}. "
        f"Got {optimizer!r} instead."
    )
