"""Scores of lazy predictions: a few sums leave each partition, and nothing else.

Predictions, targets and weights are aligned partition by partition, as for a fit. It
knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps.data.alignment import partitions_of
from dps.data.sealed import sealed
from dps.data.targets import as_targets
from dps.losses.base import as_columns

__all__ = ["accuracy", "determination"]


def accuracy(predicted: Any, y: Any, weight: Any, client: Any) -> float:
    """Weighted share of rows whose label is predicted.

    Parameters
    ----------
    predicted : dask array or series
    y, weight : dask array or series, or a local vector; weight may be None
    client : distributed.Client or None
        Where to compute; None leaves it to Dask.
    """
    sums = _of_partitions(_hits, predicted, y, weight, client)
    hits, total = np.sum(sums, axis=0)
    return float(hits / total)


def determination(predicted: Any, y: Any, weight: Any, client: Any) -> float:
    """Weighted coefficient of determination, with scikit-learn's values for a constant y.

    Of several outputs it is the mean.

    Parameters
    ----------
    predicted, y, weight, client
        As for `accuracy`.
    """
    sums = _of_partitions(_moments, predicted, y, weight, client)
    totals, means, squares, errors = (np.asarray(column) for column in zip(*sums, strict=True))
    # Chan, Golub and LeVeque (1983): squares about the common mean, without cancellation.
    mean = totals @ means / totals.sum()
    variation = squares.sum(axis=0) + totals @ (means - mean) ** 2
    error = errors.sum(axis=0)
    constant = np.where(error == 0, 1.0, 0.0)
    varying = variation != 0
    of_outputs = np.where(varying, 1.0 - error / np.where(varying, variation, 1.0), constant)
    return float(of_outputs.mean())


def _of_partitions(
    function: Callable[..., Any], predicted: Any, y: Any, weight: Any, client: Any
) -> list[Any]:
    import dask

    sums = dask.delayed(sealed(function))
    tasks = [
        sums(part.X, part.y, part.weight, number)
        for number, part in enumerate(partitions_of(predicted, y, weight, multi_output=True))
    ]
    if client is None:
        return list(dask.compute(*tasks))
    futures = client.compute(tasks)
    try:
        return list(client.gather(futures))
    finally:
        for future in futures:  # a traceback may keep them
            future.release()


def _vectors(predicted: Any, y: Any, weight: Any, number: int) -> tuple[NDArray[Any], ...]:
    left, right = as_targets(predicted), as_targets(y)
    weights = np.ones(len(left)) if weight is None else as_targets(weight).astype(np.float64)
    if not len(left) == len(right) == len(weights):
        raise ValueError(
            f"partition {number} of X has {len(left)} rows, of y {len(right)}, of sample_weight "
            f"{len(weights)}: they must be cut at the same rows"
        )
    if left.shape != right.shape:
        raise ValueError(
            f"y in partition {number} has shape {right.shape}, predictions have {left.shape}"
        )
    return left, right, weights


def _hits(predicted: Any, y: Any, weight: Any, number: int) -> tuple[float, float]:
    left, right, weights = _vectors(predicted, y, weight, number)
    return float(weights[left == right].sum()), float(weights.sum())


def _moments(predicted: Any, y: Any, weight: Any, number: int) -> tuple[Any, ...]:
    """Sum of weights; of each output mean, squares about it, and squared errors."""
    left, right, weights = _vectors(predicted, y, weight, number)
    left, values = as_columns(left), as_columns(right.astype(np.float64))
    total = float(weights.sum())
    mean = weights @ values / total if total else np.zeros(values.shape[1])
    return total, mean, weights @ (values - mean) ** 2, weights @ (values - left) ** 2
