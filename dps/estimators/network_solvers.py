"""What `solver` of networks means: an optimizer of stochastic steps, or passes over all rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from dps.data.inspection import DataSummary
from dps.modes import get_mode
from dps.optimizers import OPTIMIZERS, SGD, AdamW, Optimizer, get_optimizer
from dps.training.defaults import GAIN, OF_SMALL, PROMISE
from dps.training.full_batch import FullBatch

__all__ = ["PASSES", "check_passes", "passes", "solver_of"]

_ADAMW = AdamW(beta2=0.95)
#: Passes over all rows that "auto" plans for L-BFGS, as scikit-learn does.
PASSES = 200


def solver_of(solver: Any) -> Optimizer:
    """The optimizer of stochastic steps.

    Raises
    ------
    ValueError
        There is none of that name.
    """
    if solver == "auto":
        return _ADAMW
    if solver == "lbfgs":
        return SGD()  # of which no step is taken
    if isinstance(solver, str) and solver not in OPTIMIZERS:
        raise ValueError(
            "The 'solver' parameter must be an Optimizer or a str among "
            f"{['auto', 'lbfgs', *sorted(OPTIMIZERS)]}. Got {solver!r} instead."
        )
    return get_optimizer(solver)


def check_passes(asked: Any, partial: bool) -> None:
    """Raise where something was asked for that passes over all rows cannot honour.

    Raises
    ------
    ValueError
    """
    wishes = {
        "partial_fit": partial,
        "early_stopping=True": asked.early_stopping is True,
        f"batch_size={asked.batch_size!r}": asked.batch_size != "auto",
        f"learning_rate={asked.learning_rate!r}": asked.learning_rate != "auto",
        f"learning_rate_init={asked.learning_rate_init!r}": asked.learning_rate_init != "auto",
        f"mode={asked.mode!r}": get_mode(asked.mode).takes_steps_only,
    }
    for what, is_asked in wishes.items():
        if is_asked:
            raise ValueError(f"solver='lbfgs' is not possible with {what}: use another solver")


def passes(alpha: float, summary: DataSummary, tol: float | None, patience: int) -> FullBatch:
    """L-BFGS in the network's own units, in which layers of all widths learn alike."""
    return FullBatch(
        l2=alpha / summary.total,
        l1=0.0,
        tolerance=(tol or 0.0) * PROMISE,
        relative=(tol or 0.0) * PROMISE * OF_SMALL,
        patience=patience,
        least=-np.inf if tol is None else tol * GAIN,
        width=0.0,
        near=0.0,
        row_elements=summary.elements / summary.total,
    )
