"""Losses by name: a loss is a class and a line in `LOSSES`."""

from dps.losses.base import Loss, Task
from dps.losses.classification import (
    Hinge,
    LogLoss,
    ModifiedHuber,
    Softmax,
    SquaredHinge,
)
from dps.losses.regression import (
    EpsilonInsensitive,
    Gamma,
    Huber,
    Poisson,
    Quantile,
    SquaredError,
)

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

    loss: the softmax has no name for users: the log loss becomes it for several classes.
    task: {"classification", "regression"}.
    Raises ValueError: if it is neither, or belongs to the other task; the names there are are
    listed.

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
