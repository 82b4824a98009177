"""Metrics of numbers, as sums over partitions."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import UndefinedMetricWarning

from dps.metrics.checks import of_numbers
from dps.metrics.sums import Metric, of_partitions, same_shape
from dps.scores import formulas


@Metric()
def mean_squared_error(
    y_true: Any, y_pred: Any, *, sample_weight: Any = None, client: Any = None
) -> float:
    """Weighted mean of squared errors; of several outputs, their mean.

    Parameters
    ----------
    y_true, y_pred : arrays, series, dask arrays, series or dataframes, (n,) or (n, n_outputs)
        Partition i of one belongs to partition i of the other.
    sample_weight : vector of length n, optional
    client : distributed.Client, cluster or address, optional
        Where to compute; by default wherever Dask does.

    Returns
    -------
    float
        In squared units of y.

    Raises
    ------
    ValueError
        They are not cut at the same rows.

    Examples
    --------
    >>> import dask.array as da
    >>> from dps.metrics import mean_squared_error
    >>> mean_squared_error(da.from_array([1.0, 2.0], chunks=1), da.from_array([1.0, 4.0], chunks=1))
    2.0
    """
    return float(_mean(_squares, y_true, y_pred, sample_weight, client).mean())


@Metric()
def root_mean_squared_error(
    y_true: Any, y_pred: Any, *, sample_weight: Any = None, client: Any = None
) -> float:
    """Root of the mean squared error of each output, and their mean; in units of y.

    Parameters
    ----------
    y_true, y_pred, sample_weight, client
        As for `mean_squared_error`.
    """
    return float(np.sqrt(_mean(_squares, y_true, y_pred, sample_weight, client)).mean())


@Metric()
def mean_absolute_error(
    y_true: Any, y_pred: Any, *, sample_weight: Any = None, client: Any = None
) -> float:
    """Weighted mean of absolute errors; of several outputs, their mean. In units of y.

    Parameters
    ----------
    y_true, y_pred, sample_weight, client
        As for `mean_squared_error`.
    """
    return float(_mean(_distances, y_true, y_pred, sample_weight, client).mean())


@Metric()
def r2_score(y_true: Any, y_pred: Any, *, sample_weight: Any = None, client: Any = None) -> float:
    """Weighted coefficient of determination, with scikit-learn's values for a constant y.

    Of several outputs it is the mean; of a single row NaN.

    Parameters
    ----------
    y_true, y_pred, sample_weight, client
        As for `mean_squared_error`.
    """
    parts = of_partitions(_moments, of_numbers, y_true, y_pred, sample_weight, client)
    if sum(part[0] for part in parts) < 2:
        warnings.warn(
            "R^2 score is not well-defined with less than two samples.",
            UndefinedMetricWarning,
            stacklevel=3,
        )
        return float("nan")
    return float(formulas.r2(formulas.joined([part[1:] for part in parts])).mean())


def _mean(function: Any, y: Any, predicted: Any, weight: Any, client: Any) -> NDArray[np.float64]:
    """A mean for each output."""
    sums = of_partitions(function, of_numbers, y, predicted, weight, client)
    total = sum(weight for weight, _ in sums)
    return np.asarray(np.divide(np.sum([errors for _, errors in sums], axis=0), total))


def _squares(predicted: Any, y: Any, weights: NDArray[Any]) -> tuple[float, NDArray[Any]]:
    same_shape(predicted, y)
    return float(weights.sum()), weights @ formulas.squared(y, predicted)


def _distances(predicted: Any, y: Any, weights: NDArray[Any]) -> tuple[float, NDArray[Any]]:
    same_shape(predicted, y)
    return float(weights.sum()), weights @ formulas.absolute(y, predicted)


def _moments(predicted: Any, y: Any, weights: NDArray[Any]) -> NDArray[np.float64]:
    """The number of rows, and their moments."""
    same_shape(predicted, y)
    return np.r_[len(y), formulas.moments(y, predicted, weights)]
