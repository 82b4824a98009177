"""Optimizers by name: an optimizer is a class and a line in `OPTIMIZERS`."""

from dps.optimizers.adaptive import Adagrad, Adam, AdamW, ScaledAdagrad
from dps.optimizers.base import Optimizer
from dps.optimizers.descent import SGD, Momentum

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

    Raises ValueError: if it is neither; the names there are are listed.

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
