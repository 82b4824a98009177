"""Scores called D^2, the share of a constant's loss that predictions save; and median errors.

A deviance about the mean of all rows is that about the mean of each partition plus that of these
means. So no sums cancel, and the data is read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn import metrics
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.utils.stats import _weighted_percentile

from dps._warned import warn
from dps.metrics.checks import of_counts, of_numbers, of_positive
from dps.metrics.classification import brier_of, log_loss_of, totals
from dps.metrics.regression import of_outputs
from dps.metrics.sums import Metric, merged, of_partitions, same_shape
from dps.scores.formulas import absolute, negative_logs

if TYPE_CHECKING:
    from dps._typing import ClientLike, Label, Multioutput, VectorLike


@Metric()
def d2_tweedie_score(
    y_true: VectorLike,
    y_pred: VectorLike,
    *,
    sample_weight: VectorLike | None = None,
    power: float = 0,
    client: ClientLike | None = None,
) -> float:
    """Share of the Tweedie deviance that predictions explain; of power 0 that is R^2.

    Parameters
    ----------
    y_true, y_pred : arrays, series, dask arrays or dask series of shape (n,)
        Partition i of one belongs to partition i of the other.
    sample_weight : vector of length n, optional
    power : float, default=0
        0 is the squared error, 1 Poisson's deviance, 2 that of the gamma distribution, 3 that of
        the inverse Gaussian.
    client : distributed.Client, cluster or address, optional
        Client that computes. The default is Dask's scheduler.

    Returns
    -------
    float
        1 where all is explained, 0 where the mean of y predicts as well; NaN of a single row.

    Raises
    ------
    ValueError
        The arguments are cut at different rows; `power` does not allow such values.

    Examples
    --------
    >>> import dask.array as da
    >>> from dps.metrics import d2_tweedie_score
    >>> y = da.from_array([1.0, 2.0, 6.0], chunks=2)
    >>> round(d2_tweedie_score(y, da.from_array([1.5, 2.0, 5.0], chunks=2), power=1), 3)
    0.916
    """
    look = partial(_deviances, power)
    check = of_numbers if power < 1 else of_counts if power < 2 else of_positive
    parts = of_partitions(look, check, y_true, y_pred, sample_weight, client)
    if sum(part.rows for part in parts) < 2:
        return _undefined()
    weights, means = (np.array([getattr(part, it) for part in parts]) for it in ("weight", "mean"))
    mean = np.average(means, weights=weights)
    about = sum(
        part.about + part.weight * (_deviance(part.mean, mean, power) - part.of_mean)
        for part in parts
    )
    return float(1 - sum(part.left for part in parts) / about)


@Metric()
def d2_pinball_score(
    y_true: VectorLike,
    y_pred: VectorLike,
    *,
    sample_weight: VectorLike | None = None,
    alpha: float = 0.5,
    multioutput: Multioutput = "uniform_average",
    client: ClientLike | None = None,
) -> Any:
    """Share of the loss of a quantile that predictions explain.

    The worker that puts results together keeps 24 bytes for each distinct value of y.

    Parameters
    ----------
    y_true, y_pred : arrays, series, dask arrays, series or dataframes, (n,) or (n, n_outputs)
        Partition i of one belongs to partition i of the other.
    sample_weight : vector of length n, optional
    alpha : float, default=0.5
        Which quantile is predicted.
    multioutput : {"uniform_average", "raw_values"} or array of shape (n_outputs,), \
default="uniform_average"
        The mean of several outputs, all of them, or their mean with such weights.
    client : distributed.Client, cluster or address, optional
        Client that computes. The default is Dask's scheduler.

    Returns
    -------
    float, or array of shape (n_outputs,) with ``multioutput="raw_values"``
        1 where all is explained, 0 where the quantile of y predicts as well; NaN of a single row.
    """
    look, weighted = partial(_errors, alpha), sample_weight is not None
    found = merged(look, _joined, of_numbers, y_true, y_pred, sample_weight, client)
    if found.values[0].counts.sum() < 2:
        return _undefined()
    about = np.array([each.loss_of_quantile(alpha, weighted) for each in found.values])
    scores = np.where(about > 0, 1 - found.left / np.where(about > 0, about, 1), found.left == 0)
    return of_outputs(scores.astype(np.float64), multioutput)


@Metric()
def d2_absolute_error_score(
    y_true: VectorLike,
    y_pred: VectorLike,
    *,
    sample_weight: VectorLike | None = None,
    multioutput: Multioutput = "uniform_average",
    client: ClientLike | None = None,
) -> Any:
    """Share of the absolute error of the median that predictions explain.

    Parameters
    ----------
    y_true, y_pred, sample_weight, multioutput, client
        As for `d2_pinball_score`.
    """
    return d2_pinball_score(
        y_true, y_pred, sample_weight=sample_weight, multioutput=multioutput, client=client
    )


@Metric()
def median_absolute_error(
    y_true: VectorLike,
    y_pred: VectorLike,
    *,
    multioutput: Multioutput = "uniform_average",
    sample_weight: VectorLike | None = None,
    client: ClientLike | None = None,
) -> Any:
    """Median of the absolute errors; of several outputs, their mean. In units of y.

    The worker that puts results together keeps 24 bytes for each distinct error.

    Parameters
    ----------
    y_true, y_pred, multioutput, sample_weight, client
        As for `d2_pinball_score`.
    """
    weighted = sample_weight is not None
    found = merged(_distances, _joined, of_numbers, y_true, y_pred, sample_weight, client)
    return of_outputs(np.array([each.median(weighted) for each in found.values]), multioutput)


@Metric()
def d2_log_loss_score(
    y_true: VectorLike,
    y_proba: VectorLike,
    *,
    sample_weight: VectorLike | None = None,
    labels: VectorLike | None = None,
    client: ClientLike | None = None,
) -> float:
    """Share of the log loss of the class frequencies that predictions explain.

    Parameters
    ----------
    y_true, y_proba, sample_weight, labels, client
        As for `log_loss`.
    """
    parts = totals(True, y_true, y_proba, sample_weight, client)
    if sum(part.rows for part in parts) < 2:
        return _undefined()
    weight, found = _by_class(parts)
    about = (found * negative_logs(found / weight)).sum()  # also for a single class
    return float(1 - log_loss_of(parts, labels) / about)


@Metric()
def d2_brier_score(
    y_true: VectorLike,
    y_proba: VectorLike,
    *,
    sample_weight: VectorLike | None = None,
    pos_label: Label = None,
    labels: VectorLike | None = None,
    client: ClientLike | None = None,
) -> float:
    """Share of the Brier score of the class frequencies that predictions explain.

    Parameters
    ----------
    y_true, y_proba, sample_weight, pos_label, labels, client
        As for `brier_score_loss`.
    """
    parts = totals(False, y_true, y_proba, sample_weight, client)
    if sum(part.rows for part in parts) < 2:
        return _undefined()
    weight, found = _by_class(parts)
    return float(1 - brier_of(parts, pos_label, labels)[0] / (found - found**2 / weight).sum())


def _by_class(parts: Sequence[Any]) -> tuple[float, NDArray[np.float64]]:
    """Return the weight of all rows and of each class."""
    labels = np.concatenate([part.classes for part in parts])
    _, codes = np.unique(labels, return_inverse=True)
    found = _sums(codes, np.concatenate([part.of_class for part in parts]))
    return sum(part.weight for part in parts), found[found > 0]


def _sums(codes: NDArray[np.intp], values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.bincount(codes, values), np.float64)


def _undefined() -> float:
    warn(
        "D^2 score is not well-defined with less than two samples.",
        UndefinedMetricWarning,
        stacklevel=4,
    )
    return float("nan")


class _Deviances(NamedTuple):
    """A partition's number of rows, their weight, and the mean of y.

    Also the sums of the deviance of predictions and of the deviance about a constant, which is
    `mean` if that is valid; and the deviance of `mean` from the constant.
    """

    rows: int
    weight: float
    mean: float
    left: float
    about: float
    of_mean: float


def _deviance(y: Any, predicted: Any, power: float, weights: Any = None) -> float:
    y, predicted = np.atleast_1d(y), np.atleast_1d(predicted)
    return float(metrics.mean_tweedie_deviance(y, predicted, sample_weight=weights, power=power))


def _deviances(
    power: float, predicted: np.ndarray, y: np.ndarray, weights: np.ndarray
) -> _Deviances:
    same_shape(predicted, y)
    total = float(weights.sum())
    given = weights if total else None  # rows without weight have no mean, but may be invalid
    left, mean = _deviance(y, predicted, power, given), float(np.average(y, weights=given))
    constant = mean if mean > 0 or power == 0 else 1.0  # all counts are zero
    about = _deviance(y, np.full(len(y), constant), power, given)
    of_mean = _deviance(mean, constant, power)
    return _Deviances(len(y), total, mean, total * left, total * about, of_mean)


class _Values(NamedTuple):
    """Distinct values, ascending, with the weights and numbers of their rows."""

    values: NDArray[np.float64]
    weights: NDArray[np.float64]
    counts: NDArray[np.float64]

    @classmethod
    def joined(cls, parts: Sequence[_Values]) -> _Values:
        values, weights, counts = map(np.concatenate, zip(*parts, strict=True))
        distinct, codes = np.unique(values, return_inverse=True)
        return cls(distinct, _sums(codes, weights), _sums(codes, counts))

    def loss_of_quantile(self, alpha: float, weighted: bool) -> float:
        """Return the sum of the losses of the quantile as scikit-learn defines it."""
        if weighted:
            found = float(_weighted_percentile(self.values, self.weights, alpha * 100))
        else:
            found = self._quantile(alpha)
        constant = np.full(len(self.values), found)
        mean = metrics.mean_pinball_loss(
            self.values, constant, sample_weight=self.weights, alpha=alpha
        )
        return float(mean * self.weights.sum())

    def median(self, weighted: bool) -> float:
        """Return the median of values that are not negative, as scikit-learn defines it."""
        if not weighted:
            return self._quantile(0.5)
        zeros = np.zeros(len(self.values))
        return float(metrics.median_absolute_error(self.values, zeros, sample_weight=self.weights))

    def _quantile(self, alpha: float) -> float:
        """Return a quantile of unweighted rows, interpolated as in NumPy."""
        ends = np.cumsum(self.counts)
        at = (ends[-1] - 1) * alpha
        places = np.searchsorted(ends, np.floor([at, min(at + 1, ends[-1] - 1)]), "right")
        low, high = self.values[places]
        return float(low + (high - low) * (at - np.floor(at)))


class _Errors(NamedTuple):
    """Per output, the sum of the losses of predictions, and the values of y."""

    left: NDArray[np.float64]
    values: list[_Values]


def _errors(alpha: float, predicted: np.ndarray, y: np.ndarray, weights: np.ndarray) -> _Errors:
    same_shape(predicted, y)
    y, predicted = (np.asarray(each, np.float64).reshape(len(y), -1) for each in (y, predicted))
    error = y - predicted
    left = weights @ np.maximum(alpha * error, (alpha - 1) * error)
    ones = np.ones(len(y))
    return _Errors(left, [_Values.joined([_Values(each, weights, ones)]) for each in y.T])


def _distances(predicted: np.ndarray, y: np.ndarray, weights: np.ndarray) -> _Errors:
    same_shape(predicted, y)
    distances, ones = absolute(y, predicted), np.ones(len(y))
    values = [_Values.joined([_Values(each, weights, ones)]) for each in distances.T]
    return _Errors(weights @ distances, values)


def _joined(parts: Sequence[_Errors]) -> _Errors:
    left = np.sum([part.left for part in parts], axis=0)
    values = zip(*(part.values for part in parts), strict=True)
    return _Errors(left, [_Values.joined(each) for each in values])
