"""Metrics of numbers, as sums over partitions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn import metrics
from sklearn.exceptions import UndefinedMetricWarning

from dps._warned import warn
from dps.metrics.checks import Check, of_counts, of_logarithms, of_numbers, of_positive
from dps.metrics.sums import Metric, like_sklearn, of_partitions, same_shape
from dps.scores import formulas

if TYPE_CHECKING:
    from dps._typing import ClientLike, Multioutput, VectorLike


_ARGUMENTS = """\
y_true, y_pred : arrays, series, dask arrays, series or dataframes, (n,) or (n, n_outputs)
    Partition i of one belongs to partition i of the other."""
_EXAMPLE = """\
>>> y, predicted = da.from_array([1.0, 2.0], chunks=1), da.from_array([1.0, 4.0], chunks=1)
"""


def _of_numbers(
    name: str, summary: str, example: str, check: Check = of_numbers, rooted: str = ""
) -> Callable[..., Any]:
    compute = partial(_averaged, rooted or name, check, bool(rooted))
    return like_sklearn(name, compute, summary, _ARGUMENTS, _EXAMPLE + example)


def _averaged(
    name: str,
    check: Check,
    rooted: bool,
    y: VectorLike,
    predicted: VectorLike,
    weight: VectorLike | None,
    client: ClientLike | None,
    multioutput: Any = "uniform_average",
    **options: Any,
) -> Any:
    """Return the mean of scikit-learn's metric over partitions, or its root for each output."""
    if "multioutput" in inspect.signature(getattr(metrics, name)).parameters:
        options["multioutput"] = "raw_values"
    look = partial(_of_sklearn, name, **options)
    sums = of_partitions(look, check, y, predicted, weight, client)
    found = np.sum([errors for _, errors in sums], axis=0) / sum(total for total, _ in sums)
    return of_outputs(np.atleast_1d(np.sqrt(found) if rooted else found), multioutput)


mean_squared_error = _of_numbers(
    "mean_squared_error",
    "Weighted mean of squared errors, in squared units of y; of several outputs, their mean.",
    ">>> mean_squared_error(y, predicted)\n2.0",
)
root_mean_squared_error = _of_numbers(
    "root_mean_squared_error",
    "Root of the mean squared error of each output, and their mean; in units of y.",
    ">>> round(root_mean_squared_error(y, predicted), 3)\n1.414",
    rooted="mean_squared_error",
)
mean_absolute_error = _of_numbers(
    "mean_absolute_error",
    "Weighted mean of absolute errors, in units of y; of several outputs, their mean.",
    ">>> mean_absolute_error(y, predicted)\n1.0",
)
mean_absolute_percentage_error = _of_numbers(
    "mean_absolute_percentage_error",
    "Weighted mean of absolute errors over absolute targets; of several outputs, their mean.",
    ">>> mean_absolute_percentage_error(y, predicted)\n0.5",
)
mean_squared_log_error = _of_numbers(
    "mean_squared_log_error",
    "Weighted mean of the squared differences of log(1 + y); of several outputs, their mean.",
    ">>> round(mean_squared_log_error(y, predicted), 3)\n0.13",
    of_logarithms,
)
root_mean_squared_log_error = _of_numbers(
    "root_mean_squared_log_error",
    "Root of the mean squared logarithmic error of each output, and their mean.",
    ">>> round(root_mean_squared_log_error(y, predicted), 3)\n0.361",
    of_logarithms,
    rooted="mean_squared_log_error",
)
mean_pinball_loss = _of_numbers(
    "mean_pinball_loss",
    "Weighted mean of the loss of a quantile, in units of y; of several outputs, their mean.",
    ">>> mean_pinball_loss(y, predicted, alpha=0.25)\n0.75",
)
mean_poisson_deviance = _of_numbers(
    "mean_poisson_deviance",
    'Weighted mean of the Poisson deviance, twice the loss "poisson" but for a constant.',
    ">>> round(mean_poisson_deviance(y, predicted), 3)\n0.614",
    of_counts,
)
mean_gamma_deviance = _of_numbers(
    "mean_gamma_deviance",
    'Weighted mean of the gamma deviance, twice the loss "gamma" but for a constant.',
    ">>> round(mean_gamma_deviance(y, predicted), 3)\n0.193",
    of_positive,
)


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
    y_true, y_pred : arrays, series, dask arrays, series or dataframes, (n,) or (n, n_outputs)
        Partition i of one belongs to partition i of the other.
    sample_weight : vector of length n, optional
    multioutput : {"uniform_average", "raw_values", "variance_weighted"} or array of shape \
(n_outputs,), default="uniform_average"
        "variance_weighted" weights outputs by the variance of y.
    force_finite : bool, default=True
        Whether it is 1 or 0 for a constant y, and not NaN or infinite.
    client : distributed.Client, cluster or address, optional
        Client that computes. The default is Dask's scheduler.
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


def _of_sklearn(
    metric: str, predicted: np.ndarray, y: np.ndarray, weights: np.ndarray, **options: object
) -> tuple[float, Any]:
    """Return sums from a mean of scikit-learn's."""
    same_shape(predicted, y)
    total, y, predicted = float(weights.sum()), y.astype(np.float64), predicted.astype(np.float64)
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
    errors = y.astype(np.float64) - predicted.astype(np.float64)
    return formulas.moments(y, predicted, weights), formulas.moments(errors, errors, weights)


def _moments(predicted: np.ndarray, y: np.ndarray, weights: np.ndarray) -> NDArray[np.float64]:
    """Return the number of rows and their moments."""
    same_shape(predicted, y)
    return np.r_[len(y), formulas.moments(y, predicted, weights)]
