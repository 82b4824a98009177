"""The search for the strength of a penalty on held-out rows.

Copies of the estimator are fitted in threads of this process to a sample of rows from all
partitions. A strength is a multiple of that of "auto", one over the rows, because the effect of a
penalty depends on alpha times rows. `Race` chooses which strengths to try.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from dps.data.survey.rows import WIDE
from dps.estimators.auto.compare import FOLDS, Comparison, TooFewError, sample_of, scaled
from dps.estimators.auto.least_squares import HeldOutSquares
from dps.estimators.auto.race import REACH, Losses, Penalty, Race
from dps.estimators.fit.strength import Strength
from dps.losses.classification import Softmax

if TYPE_CHECKING:
    from dps.estimators.base.estimator import DistributedEstimator
    from dps.estimators.fit.survey import Survey

#: Parameters per row from which "auto" searches, and the fewest rows for a search.
_MANY, _ENOUGH = 0.1, 100


class Look(NamedTuple):
    """Options of a search for a strength."""

    folds: int  # largest number of folds
    sure: float  # standard errors by which another strength must lower the loss
    least: float  # least share of the loss that it must save
    reach: tuple[float, float] = REACH  # smallest and largest multiple, as powers of ten


#: Options for "auto" and "cv".
AUTO, _CV = Look(3, 3.0, 2e-3), Look(FOLDS, 2.0, 1e-2)


def asks_evidence(parameters: int, rows: int) -> bool:
    """True if parameters may overfit the rows, so that held-out rows must choose a penalty.

    Examples
    --------
    >>> asks_evidence(20, 2_000), asks_evidence(400_000, 250_000), asks_evidence(40, 60)
    (False, True, False)
    """
    return rows >= _ENOUGH and parameters > _MANY * rows


def find_strength(
    estimator: DistributedEstimator,
    survey: Survey,
    parameters: int,
    look: Look = AUTO,
    exact: bool = False,
) -> Strength:
    """Return the strength of a penalty for "auto" or "cv".

    It is that of "auto" if there is no search. `partial_fit` keeps that of the `fit` that it
    continues.

    parameters: of one output that may overfit the rows.
    look: options for "auto".
    exact: whether products of the columns give the optimum, see `HeldOutSquares`.
    Raises TooFewError: "cv" has too few rows.
    """
    if survey.strength is not None:  # from the checkpoint that the fit resumes
        return survey.strength
    times, standardize = estimator._alpha_times, bool(getattr(estimator, "standardize", False))
    if survey.goes_on_from_fit:
        assert survey.start is not None
        times, standardize = survey.start.times, getattr(estimator, "standardize_", standardize)
    kept = Strength(1.0 if times is None else times, standardize)
    if times is not None:
        return kept
    if estimator.alpha != "cv":
        summary, loss = survey.summary, survey.targets.loss
        # Each column of numbers or of labels has parameters of its own.
        parameters *= survey.n_outputs if isinstance(loss, Softmax) else 1
        counted = summary.total - summary.weightless
        asks = not survey.partial and loss.native is not None
        if estimator.alpha != "auto" or not asks or not asks_evidence(parameters, counted):
            return kept
    try:
        return _look(estimator, survey, _CV if estimator.alpha == "cv" else look, exact)
    except TooFewError:
        if estimator.alpha == "cv":
            raise
        return kept


def _look(estimator: DistributedEstimator, survey: Survey, how: Look, exact: bool) -> Strength:
    """Let held-out rows choose."""
    summary = survey.summary
    rows, held = sample_of(survey)
    sparse, standards = scipy.sparse.issparse(rows[0]), summary.standards
    asked = getattr(estimator, "standardize", False)
    kinds, common, linear = [bool(asked)], 1.0, hasattr(estimator, "standardize")
    if asked == "auto" and not sparse and standards is not None:
        common = _common_variance(standards[1])
        kinds = [True, False] if 0 < common < np.inf else [True]
    if sparse and kinds[0] and standards is not None:  # an encoded dataframe
        rows = scaled(rows, standards[1])
        held = held and scaled(held, standards[1])
    # L-BFGS profits from a start, and strong penalties are faster. Text needs neither.
    starts = linear and not (sparse and rows[0].shape[1] >= WIDE)
    compared: Comparison | HeldOutSquares
    if exact and not sparse:
        compared = HeldOutSquares(survey, rows, held, how.folds)
    else:
        compared = Comparison(survey, rows, held, how.folds, starts)

    def times(penalty: Penalty) -> float:
        return 10.0**penalty.power * (common if penalty.standardize != kinds[0] else 1.0)

    def losses_of(penalty: Penalty, fold: int) -> Losses:
        if isinstance(compared, HeldOutSquares):
            return compared.losses(times(penalty), penalty.standardize, fold)
        model = compared.models[fold]
        model._alpha_times = times(penalty)
        if linear:
            model.standardize = penalty.standardize and not sparse
        return compared.losses(fold)

    race = Race(losses_of, len(compared), starts or not linear, how.sure, how.least, how.reach)
    best = race.run(kinds)
    losses = race.tried(best)
    if (constant := compared.of_constant()) is not None:
        survey.looked = dict(losses).get(best, np.nan), constant
    tried = [(times(one), loss, one.standardize) for one, loss in losses]
    return Strength(times(best), best.standardize, tried)


def _common_variance(deviations: NDArray[np.float64]) -> float:
    """Return the mean variance of the columns that vary; infinite if it overflows."""
    varying = deviations[deviations != 1]
    with np.errstate(over="ignore"):
        return float(np.mean(varying**2)) if len(varying) else 1.0
