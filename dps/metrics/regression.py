"""Metrics of numbers, as sums over partitions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import UndefinedMetricWarning

from dps._warned import warn
from dps.metrics.checks import Check, of_counts, of_logarithms, of_numbers, of_positive
from dps.metrics.sums import Metric, of_partitions, same_shape
from dps.scores import formulas

if TYPE_CHECKING:
    from dps._typing import ClientLike, Multioutput, VectorLike


@Metric()
def mean_squared_error(
    y_true: VectorLike,
    y_pred: VectorLike,
    *,
    sample_weight: VectorLike | None = None,
    multioutput: Multioutput = "uniform_average",
    client: ClientLike | None = None,
) -> Any:
    """Weighted mean of squared errors; of several outputs, their mean.

    Parameters
    ----------
    y_true, y_pred : arrays, series, dask arrays, series or dataframes, (n,) or (n, n_outputs)
        Partition i of one belongs to partition i of the other.
    sample_weight : vector of length n, optional
    multioutput : {"uniform_average", "raw_values"} or array of shape (n_outputs,), \
default="uniform_average"
        The mean of several outputs, all of them, or their mean with such weights.
    client : distributed.Client, cluster or address, optional
        Client that computes. The default is Dask's scheduler.

    Returns
    -------
    float, or array of shape (n_outputs,) with ``multioutput="raw_values"``
        In squared units of y.

    Raises
    ------
    ValueError
        The arguments are cut at different rows.

    Examples
    --------
    >>> import dask.array as da
    >>> from dps.metrics import mean_squared_error
    >>> mean_squared_error(da.from_array([1.0, 2.0], chunks=1), da.from_array([1.0, 4.0], chunks=1))
    2.0
    """
    return of_outputs(_mean(_squares, y_true, y_pred, sample_weight, client), multioutput)


@Metric()
def root_mean_squared_error(
    y_true: VectorLike,
    y_pred: VectorLike,
    *,
    sample_weight: VectorLike | None = None,
    multioutput: Multioutput = "uniform_average",
    client: ClientLike | None = None,
) -> Any:
    """Root of the mean squared error of each output, and their mean; in units of y.

    Parameters
    ----------
    y_true, y_pred, sample_weight, multioutput, client
        As for `mean_squared_error`.
    """
    return of_outputs(np.sqrt(_mean(_squares, y_true, y_pred, sample_weight, client)), multioutput)


@Metric()
def mean_absolute_error(
    y_true: VectorLike,
    y_pred: VectorLike,
    *,
    sample_weight: VectorLike | None = None,
    multioutput: Multioutput = "uniform_average",
    client: ClientLike | None = None,
) -> Any:
    """Weighted mean of absolute errors; of several outputs, their mean. In units of y.

    Parameters
    ----------
    y_true, y_pred, sample_weight, multioutput, client
        As for `mean_squared_error`.
    """
    return of_outputs(_mean(_distances, y_true, y_pred, sample_weight, client), multioutput)


@Metric()
def mean_absolute_percentage_error(
    y_true: VectorLike,
    y_pred: VectorLike,
    *,
    sample_weight: VectorLike | None = None,
    multioutput: Multioutput = "uniform_average",
    client: ClientLike | None = None,
) -> Any:
    """Weighted mean of absolute errors over absolute targets; of several outputs, their mean.

    Parameters
    ----------
    y_true, y_pred, sample_weight, multioutput, client
        As for `mean_squared_error`.
    """
    look = partial(_of_sklearn, "mean_absolute_percentage_error", multioutput="raw_values")
    return of_outputs(_mean(look, y_true, y_pred, sample_weight, client), multioutput)


@Metric()
def mean_squared_log_error(
    y_true: VectorLike,
    y_pred: VectorLike,
    *,
    sample_weight: VectorLike | None = None,
    multioutput: Multioutput = "uniform_average",
    client: ClientLike | None = None,
) -> Any:
    """Weighted mean of the squared differences of log(1 + y); of several outputs, their mean.

    Parameters
    ----------
    y_true, y_pred, sample_weight, multioutput, client
        As for `mean_squared_error`; targets and predictions are above -1.
    """
    look = partial(_of_sklearn, "mean_squared_log_error", multioutput="raw_values")
    return of_outputs(
        _mean(look, y_true, y_pred, sample_weight, client, of_logarithms), multioutput
    )


@Metric()
def root_mean_squared_log_error(
    y_true: VectorLike,
    y_pred: VectorLike,
    *,
    sample_weight: VectorLike | None = None,
    multioutput: Multioutput = "uniform_average",
    client: ClientLike | None = None,
) -> Any:
    """Root of the mean squared logarithmic error of each output, and their mean.

    Parameters
    ----------
    y_true, y_pred, sample_weight, multioutput, client
        As for `mean_squared_log_error`.
    """
    squares = mean_squared_log_error(
        y_true, y_pred, sample_weight=sample_weight, multioutput="raw_values", client=client
    )
    return of_outputs(np.sqrt(squares), multioutput)


@Metric()
def mean_pinball_loss(
    y_true: VectorLike,
    y_pred: VectorLike,
    *,
    sample_weight: VectorLike | None = None,
    alpha: float = 0.5,
    multioutput: Multioutput = "uniform_average",
    client: ClientLike | None = None,
) -> Any:
    """Weighted mean of the loss of quantiles; of several outputs, their mean. In units of y.

    Parameters
    ----------
    y_true, y_pred, sample_weight, multioutput, client
        As for `mean_squared_error`.
    alpha : float, default=0.5
        Which quantile is predicted.
    """
    look = partial(_of_sklearn, "mean_pinball_loss", alpha=alpha, multioutput="raw_values")
    return of_outputs(_mean(look, y_true, y_pred, sample_weight, client), multioutput)


@Metric()
def mean_poisson_deviance(
    y_true: VectorLike,
    y_pred: VectorLike,
    *,
    sample_weight: VectorLike | None = None,
    client: ClientLike | None = None,
) -> float:
    """Weighted mean of the Poisson deviance, twice the loss "poisson" but for a constant.

    Parameters
    ----------
    y_true : array, series, dask array or dask series of shape (n,)
        Not negative.
    y_pred : likewise
        Positive.
    sample_weight, client
        As for `mean_squared_error`.
    """
    look = partial(_of_sklearn, "mean_poisson_deviance")
    return float(_mean(look, y_true, y_pred, sample_weight, client, of_counts))


@Metric()
def mean_gamma_deviance(
    y_true: VectorLike,
    y_pred: VectorLike,
    *,
    sample_weight: VectorLike | None = None,
    client: ClientLike | None = None,
) -> float:
    """Weighted mean of the gamma deviance, twice the loss "gamma" but for a constant.

    Parameters
    ----------
    y_true, y_pred : arrays, series, dask arrays or dask series of shape (n,)
        Positive.
    sample_weight, client
        As for `mean_squared_error`.
    """
    look = partial(_of_sklearn, "mean_gamma_deviance")
    return float(_mean(look, y_true, y_pred, sample_weight, client, of_positive))


@Metric()
def explained_variance_score(
    y_true: VectorLike,
    y_pred: VectorLike,
    *,
    sample_weight: VectorLike | None = None,
    multioutput: Multioutput = "uniform_average",
    force_finite: bool = True,
    client: ClientLike | None = None,
) -> Any:
    """Share of the variance of y that predictions explain; a constant error does not lower it.

    Parameters
    ----------
    y_true, y_pred, sample_weight, multioutput, force_finite, client
        As for `r2_score`.
    """
    parts = of_partitions(_variances, of_numbers, y_true, y_pred, sample_weight, client)
    found, errors = (formulas.joined(side) for side in zip(*parts, strict=True))
    n_outputs = len(found) // 3
    found[-n_outputs:] = np.split(errors[1:], 3)[1]
    return _explained(found, multioutput, force_finite)


@Metric()
def r2_score(
    y_true: VectorLike,
    y_pred: VectorLike,
    *,
    sample_weight: VectorLike | None = None,
    multioutput: Multioutput = "uniform_average",
    force_finite: bool = True,
    client: ClientLike | None = None,
) -> Any:
    """Weighted coefficient of determination, with scikit-learn's values for a constant y.

    For several outputs it is the mean, for a single row NaN.

    Parameters
    ----------
    y_true, y_pred, sample_weight, client
        As for `mean_squared_error`.
    multioutput : {"uniform_average", "raw_values", "variance_weighted"} or array of shape \
(n_outputs,), default="uniform_average"
        "variance_weighted" weights outputs by the variance of y.
    force_finite : bool, default=True
        Whether it is 1 or 0 for a constant y, and not NaN or infinite.
    """
    parts = of_partitions(_moments, of_numbers, y_true, y_pred, sample_weight, client)
    if sum(part[0] for part in parts) < 2:
        warn(
            "R^2 score is not well-defined with less than two samples.",
            UndefinedMetricWarning,
            stacklevel=3,
        )
        return float("nan")
    found = formulas.joined([part[1:] for part in parts])
    return _explained(found, multioutput, force_finite)


def _explained(found: NDArray[np.float64], multioutput: Any, force_finite: bool) -> Any:
    """Return the explained share of the variance of y, from moments."""
    if isinstance(multioutput, str) and multioutput == "variance_weighted":
        variances = np.split(found[1:], 3)[1]
        multioutput = variances if variances.any() else "uniform_average"
    return of_outputs(formulas.r2(found, force_finite), multioutput)


def of_outputs(values: NDArray[np.float64], multioutput: Any) -> Any:
    """Combine the scores of several outputs."""
    if not isinstance(multioutput, str):
        return float(np.average(values, weights=multioutput))
    if multioutput == "raw_values":
        return values
    if multioutput != "uniform_average":
        raise ValueError(f"multioutput={multioutput!r} is not possible with this metric")
    return float(values.mean())


def _mean(
    function: Any,
    y: VectorLike,
    predicted: VectorLike,
    weight: VectorLike | None,
    client: ClientLike | None,
    check: Check = of_numbers,
) -> NDArray[np.float64]:
    """Return a mean for each output."""
    sums = of_partitions(function, check, y, predicted, weight, client)
    total = sum(weight for weight, _ in sums)
    return np.asarray(np.divide(np.sum([errors for _, errors in sums], axis=0), total))


def _squares(predicted: np.ndarray, y: np.ndarray, weights: np.ndarray) -> tuple[float, np.ndarray]:
    same_shape(predicted, y)
    return float(weights.sum()), weights @ formulas.squared(y, predicted)


def _distances(
    predicted: np.ndarray, y: np.ndarray, weights: np.ndarray
) -> tuple[float, np.ndarray]:
    same_shape(predicted, y)
    return float(weights.sum()), weights @ formulas.absolute(y, predicted)


def _of_sklearn(
    metric: str, predicted: np.ndarray, y: np.ndarray, weights: np.ndarray, **options: object
) -> tuple[float, Any]:
    """Return sums from a mean of scikit-learn's."""
    from sklearn import metrics

    same_shape(predicted, y)
    total = float(weights.sum())
    # Rows without weight have no mean, but invalid values among them are still errors.
    found = getattr(metrics, metric)(
        y, predicted, sample_weight=weights if total else None, **options
    )
    return total, total * np.asarray(found)


def _variances(
    predicted: np.ndarray, y: np.ndarray, weights: np.ndarray
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the moments of targets and of errors."""
    same_shape(predicted, y)
    errors = y - predicted.astype(np.float64)
    return formulas.moments(y, predicted, weights), formulas.moments(errors, errors, weights)


def _moments(predicted: np.ndarray, y: np.ndarray, weights: np.ndarray) -> NDArray[np.float64]:
    """Return the number of rows and their moments."""
    same_shape(predicted, y)
    return np.r_[len(y), formulas.moments(y, predicted, weights)]
