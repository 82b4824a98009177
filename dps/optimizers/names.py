"""Optimizers by name."""

import numpy as np

from dps.optimizers import OPTIMIZERS, Optimizer

#: Classes that have been checked; concurrent threads may check one twice.
_checked: set[type[Optimizer]] = set()


def get_optimizer(optimizer: str | Optimizer) -> Optimizer:
    """Return an optimizer by its name, or as it is.

    Raises ValueError: there is none of that name, or it is not element-wise.

    Examples
    --------
    >>> get_optimizer("momentum")
    Momentum(learning_rate='auto', momentum=0.9, nesterov=False)
    """
    if isinstance(optimizer, Optimizer):
        if optimizer.native is None and type(optimizer) not in _checked:
            _check_slices(optimizer)
            _checked.add(type(optimizer))
        return optimizer
    if isinstance(optimizer, str) and optimizer in OPTIMIZERS:
        return OPTIMIZERS[optimizer]()
    raise ValueError(
        f"The 'optimizer' parameter must be an Optimizer or a str among {sorted(OPTIMIZERS)}. "
        f"Got {optimizer!r} instead."
    )


def _check_slices(optimizer: Optimizer) -> None:
    """Raise if updating slices, as replicas and shards do, differs from updating the whole."""
    grads = np.array([[1.0, -2.0, 0.5, 3.0], [0.25, 1.0, -1.0, 2.0]])

    def updated(*slices: slice) -> list[float]:
        params, state = np.array([0.5, -1.0, 2.0, 0.25]), np.empty((optimizer.state_rows, 4))
        optimizer.initialize(state)
        for step, grad in enumerate(grads, 1):
            for part in slices:
                optimizer.update(
                    params[part], grad[part], state[:, part], step=step, lr=0.1, l1=0.0, l2=0.0
                )
        return params.tolist()

    try:
        whole, halves = updated(slice(4)), updated(slice(2), slice(2, 4))
    except Exception:  # an exception of the user's code, which the fit raises with its place
        return
    if not np.allclose(whole, halves, rtol=1e-6, equal_nan=True):
        raise ValueError(
            f"{type(optimizer).__name__}.update is not element-wise, and replicas update slices: "
            f"two updates turn a vector of four into {whole}, but into {halves} if its halves are "
            "updated one by one. Let each new parameter depend on its own gradient and state only"
        )
