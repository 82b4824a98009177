"""Losses by name.

A loss is a class and a line in `LOSSES`. Nothing here may know models, servers or modes.
"""

from dps.losses.base import Loss, Task
from dps.losses.classification import (
    Hinge,
    LogLoss,
    MarginLoss,
    ModifiedHuber,
    Multilabel,
    OneVsRest,
    Softmax,
    SquaredHinge,
)
from dps.losses.constants import best_constant, loss_of_mean
from dps.losses.regression import (
    EpsilonInsensitive,
    Gamma,
    Huber,
    Poisson,
    Quantile,
    SquaredError,
)
from dps.losses.units import Units, units_of

__all__ = [
    "LOSSES",
    "EpsilonInsensitive",
    "Gamma",
    "Hinge",
    "Huber",
    "LogLoss",
    "Loss",
    "MarginLoss",
    "ModifiedHuber",
    "Multilabel",
    "OneVsRest",
    "Poisson",
    "Quantile",
    "Softmax",
    "SquaredError",
    "SquaredHinge",
    "Units",
    "best_constant",
    "get_loss",
    "loss_of_mean",
    "units_of",
]

LOSSES: dict[str, type[Loss]] = {
    "squared_error": SquaredError,
    "log_loss": LogLoss,
    "hinge": Hinge,
    "squared_hinge": SquaredHinge,
    "modified_huber": ModifiedHuber,
    "huber": Huber,
    "epsilon_insensitive": EpsilonInsensitive,
    "quantile": Quantile,
    "poisson": Poisson,
    "gamma": Gamma,
    "softmax": Softmax,
}


def get_loss(loss: str | Loss, task: Task) -> Loss:
    """Return a loss, given itself or its name.

    Parameters
    ----------
    loss : str or Loss
        The softmax has no name for users: the log loss becomes it for several classes.
    task : {"classification", "regression"}

    Returns
    -------
    Loss

    Raises
    ------
    ValueError
        If it is neither, or belongs to the other task; the names there are are listed.

    Examples
    --------
    >>> get_loss("log_loss", "classification")
    LogLoss()
    """
    names = sorted(n for n, kind in LOSSES.items() if kind.task == task and kind is not Softmax)
    if isinstance(loss, Loss) and loss.task == task:
        return loss
    if isinstance(loss, str) and loss in names:
        return LOSSES[loss]()
    raise ValueError(
        f"The 'loss' parameter for {task} must be a Loss or a str among {names}. "
        f"Got {loss!r} instead."
    )
