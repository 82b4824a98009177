"""Losses by name."""

from dps import losses
from dps.losses.base import Loss, Task
from dps.losses.classification import Softmax

#: The public losses, and the softmax, which the log loss becomes for several classes.
LOSSES: dict[str, type[Loss]] = {
    kind.name: kind
    for kind in (*(getattr(losses, each) for each in losses.__all__), Softmax)
    if kind is not Loss
}


def names_of(task: Task) -> list[str]:
    """Return the names that users may give."""
    return [name for name, kind in LOSSES.items() if kind.task == task and kind is not Softmax]


def get_loss(loss: str | Loss, task: Task) -> Loss:
    """Return a loss of a task by its name, or as it is.

    Raises ValueError: there is none of that name, or it belongs to the other task.

    Examples
    --------
    >>> get_loss("log_loss", "classification")
    LogLoss()
    """
    names = sorted(names_of(task))
    if isinstance(loss, Loss) and loss.task == task:
        return loss
    if isinstance(loss, str) and loss in names:
        return LOSSES[loss]()
    raise ValueError(
        f"The 'loss' parameter for {task} must be a Loss or a str among {names}. "
        f"Got {loss!r} instead."
    )
