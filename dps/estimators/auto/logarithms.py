"""Columns with long tails whose logarithms predict the target better.

Candidates are columns whose logarithm alone explains much more of the target, in a sample of rows.
Held-out rows decide whether all candidates or none are transformed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from dps.estimators.auto.alpha import AUTO, asks_evidence
from dps.estimators.auto.compare import Comparison, Rows, TooFewError, sample_of, scaled
from dps.estimators.auto.race import Race
from dps.preprocessing.columns import logarithms_of, take_logarithms

if TYPE_CHECKING:
    from dps.estimators.fit.survey import Survey

#: A candidate's logarithm explains this many times the variance of the target, and as much more as
#: this number of rows: a model with it is then more likely by exp(5).
_TIMES, _ROWS = 1.2, 10.0
#: Ratio of variance to mean square above which a variance is more than rounding.
_VARIES = 1e-9
#: Largest number of labels that are examined.
_LABELS = 50
#: A strength as a power of ten above that of "auto", in case that overfits the rows.
_STRONG = 1.0


def useful_logarithms(survey: Survey) -> NDArray[np.intp]:
    """Return the columns of encoded rows whose logarithms lower the loss on held-out rows."""
    none = np.empty(0, np.intp)
    encoding = survey.encoding
    assert encoding is not None
    columns = np.array(encoding.encoder._layout.number_columns, np.intp)
    if survey.columns is not None:
        columns = np.flatnonzero(np.isin(survey.columns.numbers, columns))
    if not len(columns) or survey.targets.loss.native is None:
        return none
    rows, held = sample_of(survey)
    if not scipy.sparse.issparse(rows[0]):
        return none
    columns = columns[_says_more(rows[0][:, columns].toarray(), _targets(survey, rows[1]))]
    if not len(columns):
        return none
    changed = [
        each and (take_logarithms(each[0], columns=columns), *each[1:]) for each in (rows, held)
    ]
    try:
        compared = [_comparison(survey, *each) for each in ((rows, held), changed)]
    except TooFewError:
        return none
    race = Race(
        lambda candidate, fold: compared[candidate.standardize].losses(fold),
        len(compared[0].models), sure=AUTO.sure, least=AUTO.least, reach=(0.0, 0.0),
    )  # fmt: skip
    return columns if race.run([False, True]).standardize else none


def _comparison(survey: Survey, rows: Rows, held: Rows | None) -> Comparison:
    """Return fits without a search for the strength of the penalty."""
    estimator, summary = survey.estimator, survey.summary
    if estimator.standardize and summary.standards is not None:
        deviation = summary.standards[1].copy()
        numbers = np.flatnonzero(deviation != 1)
        spread = rows[0][:, numbers].toarray().std(axis=0, dtype=np.float64)
        deviation[numbers] = np.where(spread > 0, spread, 1.0)
        rows = scaled(rows, deviation)
        held = held and scaled(held, deviation)
    compared = Comparison(survey, rows, held, AUTO.folds, warm=False)
    strong = asks_evidence(summary.n_features, summary.total)
    for model in compared.models:
        model._alpha_times, model.standardize = 10.0 ** (_STRONG * strong), False
    return compared


def _targets(survey: Survey, y: NDArray[Any]) -> NDArray[np.float64]:
    """Return targets as numbers, labels as columns of zeros and ones, (n, n_outputs)."""
    if survey.targets.classes is not None and y.ndim == 1:
        labels, counts = np.unique(y, return_counts=True)
        frequent = labels[np.argsort(-counts, kind="stable")[:_LABELS]]
        return (y[:, None] == frequent).astype(np.float64)
    return y.reshape(len(y), -1).astype(np.float64)


def _says_more(X: NDArray[Any], y: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return the columns whose logarithms alone explain much more of the targets."""
    as_is, logarithms = (_explained(each, y) for each in (X.astype(np.float64), logarithms_of(X)))
    found: NDArray[np.bool_] = (logarithms > _TIMES * as_is) & (
        len(y) * (logarithms - as_is) > _ROWS
    )
    return found


def _explained(X: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of the targets' variance that each column explains alone, averaged."""
    (x, x_varies), (y, y_varies) = (_centred(each) for each in (X, y))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        shares = np.einsum("ij,ik->jk", x, y) ** 2 / np.outer(x_varies, y_varies)
    shares[~np.isfinite(shares)] = 0.0
    mean: NDArray[np.float64] = shares.mean(axis=1)
    return mean


def _centred(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return values minus their mean, and sums of squares, zero if these are rounding."""
    centred = values - values.mean(axis=0)
    squares, of_all = np.square(centred).sum(axis=0), np.square(values).sum(axis=0)
    return centred, np.where(squares > _VARIES * of_all, squares, 0.0)
