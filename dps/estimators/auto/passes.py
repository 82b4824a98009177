"""L-BFGS: its passes over all rows, their end, and parameters that exclude it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dps._warned import warn
from dps.losses import Loss
from dps.models.linear import ROUNDINGS

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

    from dps.data.survey.rows import DataSummary
    from dps.estimators.base.estimator import DistributedEstimator
    from dps.training.lbfgs.full_batch import FullBatch

#: L-BFGS ends when its next step promises less than this share of `tol`, or when several passes in
#: a row have each gained less than the other share. Its passes are cheap for what they gain: on
#: breast cancer data, which needs most, 1.0 stopped 3% above the optimum, 0.1 0.7%.
_TOL, _GAIN_THAT_COUNTS = 0.01, 0.1
#: With fewer stored values in X the share is proportionally smaller, down to the other: passes cost
#: little there, and the synthetic problems of the tests end within 1e-6 of the optimum. On the
#: flights it took 15 passes instead of 11.
_MANY_VALUES, _SMALL_TOL = 10 << 20, 0.001
#: For an objective below a quarter the promise is this multiple of its share: on the flights, whose
#: objective is 0.47, a share of one took 15 passes instead of 11 for the same test loss.
_RELATIVE_TOL = 4.0
#: For a loss with kinks, or with L1, a search ends when a step promises less than this share of
#: `tol` of the objective, because promises know little of kinks and last digits decide which
#: coefficients are zero. Kinks are narrow enough when they provably cost less than a multiple of
#: `tol` of it: with L1 5 left up to four of 40 zeros wrong.
_KINK_TOL, _L1_TOL, _KINK_ERROR, _L1_ERROR = 1e-4, 1e-5, 5.0, 0.1


def passes(
    summary: DataSummary,
    tol: float | None,
    patience: int,
    l2: float,
    *,
    l1: float = 0.0,
    unit: float = 1.0,
    width: float = 0.0,
    moments: NDArray[np.float64] | None = None,
) -> FullBatch:
    """Return the options of passes that end when a step promises little.

    patience: consecutive passes with too little gain.
    unit: a large squared gradient.
    width: of the parabolas that first replace a loss's kinks; 0: it has none.
    moments: see `FullBatch`.
    """
    from dps.training.lbfgs.full_batch import FullBatch

    allowed = tol or 0.0
    # The last digits decide which coefficients are zero, and which rows are at a kink.
    sharp = (_L1_TOL if l1 else _KINK_TOL) if width or l1 else 0.0
    share = max(_SMALL_TOL, _TOL * min(1.0, summary.elements / _MANY_VALUES))
    least = allowed * _GAIN_THAT_COUNTS * unit
    if tol is None or l1:
        least = -np.inf
    elif width:
        least = np.inf
    return FullBatch(
        l2=l2,
        l1=l1,
        tolerance=allowed * (10 * sharp or share) * unit,
        relative=allowed * (sharp or share * _RELATIVE_TOL),
        patience=patience,
        least=least,
        width=width,
        near=allowed * (_L1_ERROR if l1 else _KINK_ERROR),
        row_elements=summary.elements / summary.total,
        moments=moments,
    )


def moments_of(summary: DataSummary) -> NDArray[np.float64] | None:
    """Return mean and variance of each column, if they are known for all."""
    if summary.moments is None or len(summary.moments.columns) < summary.n_features:
        return None
    found = np.array([summary.moments.mean, summary.moments.variance])
    if not np.isfinite(found).all():
        return None
    _warn_of_far_columns(found[0], found[1], np.dtype(summary.dtype))
    return found


def _warn_of_far_columns(
    mean: NDArray[np.float64], variance: NDArray[np.float64], dtype: np.dtype[Any]
) -> None:
    """Warn about columns whose variation is so close to rounding that they are left out."""
    eps = float(np.finfo(dtype).eps)
    rounding = eps * np.abs(mean)
    # Constant columns also vary by less than a few roundings.
    far = np.flatnonzero(
        (variance > (4 * rounding) ** 2) & (variance < (ROUNDINGS * rounding) ** 2)
    )
    if len(far):
        warn(
            f"columns {far[:5].tolist()} of X ({len(far)} in all) are left out: their means are so "
            f"large that {dtype} keeps few digits of how they vary. Subtract the means, or give "
            "float64",
            UserWarning,
            stacklevel=2,
        )


def l1_share(estimator: BaseEstimator) -> float:
    """Return the share of L1 in the penalty."""
    return {"l1": 1.0, "elasticnet": float(estimator.l1_ratio)}.get(estimator.penalty, 0.0)


def has_kinks(loss: Loss) -> bool:
    """True if the derivative has jumps that parabolas can smooth."""
    return loss.native is not None and loss.native.kinked


def minibatch_only_parameters(estimator: DistributedEstimator) -> Iterator[str]:
    """Return the parameters that only stochastic steps honour."""
    if estimator._stops_early:
        yield f"early_stopping={estimator.early_stopping!r}"
    for name in ("learning_rate", "batch_size"):
        if (given := getattr(estimator, name, "auto")) != "auto":
            yield f"{name}={given!r}"
    from dps.modes import get_mode

    if get_mode(estimator.mode).takes_steps_only:
        yield f"mode={estimator.mode!r}"


def refuse_passes(*obstacles: str) -> None:
    """Raise if there is a parameter that L-BFGS cannot honour."""
    if obstacles:
        raise ValueError(
            f"optimizer='lbfgs' is not possible with {obstacles[0]}: use another optimizer"
        )
