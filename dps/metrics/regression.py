"""Metrics of numbers, as sums over partitions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps.losses.base import as_columns
from dps.metrics.sums import of_partitions, same_shape

__all__ = [
    "mean_absolute_error",
    "mean_squared_error",
    "r2_score",
    "root_mean_squared_error",
]


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


def r2_score(y_true: Any, y_pred: Any, *, sample_weight: Any = None, client: Any = None) -> float:
    """Weighted coefficient of determination, with scikit-learn's values for a constant y.

    Of several outputs it is the mean.

    Parameters
    ----------
    y_true, y_pred, sample_weight, client
        As for `mean_squared_error`.
    """
    sums = of_partitions(_moments, y_true, y_pred, sample_weight, client)
    totals, means, squares, errors = (np.asarray(column) for column in zip(*sums, strict=True))
    # Chan, Golub and LeVeque (1983): squares about the common mean, without cancellation.
    mean = totals @ means / totals.sum()
    variation = squares.sum(axis=0) + totals @ (means - mean) ** 2
    error = errors.sum(axis=0)
    constant = np.where(error == 0, 1.0, 0.0)
    varying = variation != 0
    of_outputs = np.where(varying, 1.0 - error / np.where(varying, variation, 1.0), constant)
    return float(of_outputs.mean())


def _mean(function: Any, y: Any, predicted: Any, weight: Any, client: Any) -> NDArray[np.float64]:
    """A mean for each output."""
    sums = of_partitions(function, y, predicted, weight, client)
    total = sum(weight for weight, _ in sums)
    return np.asarray(np.divide(np.sum([errors for _, errors in sums], axis=0), total))


def _errors(predicted: Any, y: Any) -> NDArray[np.float64]:
    same_shape(predicted, y)
    errors: NDArray[np.float64] = as_columns(y.astype(np.float64)) - as_columns(predicted)
    return errors


def _squares(predicted: Any, y: Any, weights: NDArray[Any]) -> tuple[float, NDArray[Any]]:
    return float(weights.sum()), weights @ _errors(predicted, y) ** 2


def _distances(predicted: Any, y: Any, weights: NDArray[Any]) -> tuple[float, NDArray[Any]]:
    return float(weights.sum()), weights @ np.abs(_errors(predicted, y))


def _moments(predicted: Any, y: Any, weights: NDArray[Any]) -> tuple[Any, ...]:
    """Sum of weights; of each output mean, squares about it, and squared errors."""
    errors = _errors(predicted, y)
    values = as_columns(y.astype(np.float64))
    total = float(weights.sum())
    mean = weights @ values / total if total else np.zeros(values.shape[1])
    return total, mean, weights @ (values - mean) ** 2, weights @ errors**2
