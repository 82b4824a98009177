"""What `solver` of networks means: an optimizer of stochastic steps, or passes over all rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from dps.data.inspection import DataSummary
from dps.estimators.choices import asks_for_steps, check_known, refuse_passes
from dps.optimizers import SGD, AdamW, Optimizer, get_optimizer
from dps.training.defaults import GAIN_THAT_COUNTS, RELATIVE_TOL, TOL_OF_PASSES
from dps.training.lbfgs.full_batch import FullBatch

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
    check_known(solver, "solver")
    return get_optimizer(solver)


def check_passes(estimator: Any, partial: bool) -> None:
    """Raise where something was asked for that passes over all rows cannot honour.

    Raises
    ------
    ValueError
    """
    refuse_passes(*["partial_fit"] * partial, *asks_for_steps(estimator), name="solver")


def passes(l2: float, summary: DataSummary, tol: float | None, patience: int) -> FullBatch:
    """L-BFGS in the model's own units: in a network's, layers of all widths learn alike."""
    return FullBatch(
        l2=l2,
        l1=0.0,
        tolerance=(tol or 0.0) * TOL_OF_PASSES,
        relative=(tol or 0.0) * TOL_OF_PASSES * RELATIVE_TOL,
        patience=patience,
        least=-np.inf if tol is None else tol * GAIN_THAT_COUNTS,
        width=0.0,
        near=0.0,
        row_elements=summary.elements / summary.total,
    )
