"""Metrics of labels and of probabilities, as sums over partitions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps.metrics.sums import of_partitions, same_shape

__all__ = ["accuracy_score", "log_loss"]


def accuracy_score(
    y_true: Any, y_pred: Any, *, sample_weight: Any = None, client: Any = None
) -> float:
    """Weighted share of rows whose label is predicted, or all of them where y has several columns.

    Parameters
    ----------
    y_true : array, series or frame, dask array, series or frame of shape (n,) or (n, n_labels)
    y_pred : likewise
        Labels; partition i belongs to partition i of `y_true`.
    sample_weight : likewise, optional
    client : distributed.Client, cluster or address, optional
        Where to compute; by default wherever Dask does.

    Returns
    -------
    float
        NaN without any weight.

    Raises
    ------
    ValueError
        They are not cut at the same rows.

    Examples
    --------
    >>> import dask.array as da
    >>> from dps.metrics import accuracy_score
    >>> accuracy_score(da.from_array([0, 1, 1, 0], chunks=2), da.from_array([0, 1, 0, 0], chunks=2))
    0.75
    """
    hits, total = np.sum(of_partitions(_hits, y_true, y_pred, sample_weight, client), axis=0)
    return float(np.divide(hits, total))


def _hits(predicted: Any, y: Any, weights: NDArray[Any]) -> tuple[float, float]:
    same_shape(predicted, y)
    same = predicted == y
    same = same if same.ndim == 1 else same.all(axis=1)
    return float(weights[same].sum()), float(weights.sum())


def log_loss(
    y_true: Any,
    y_pred: Any,
    *,
    sample_weight: Any = None,
    labels: Any = None,
    client: Any = None,
) -> float:
    """Weighted mean of the negative logarithm of the probability of the true label.

    Probabilities are kept from 0 and 1 by the rounding error of their dtype, as scikit-learn
    does. A partition sends a number for each pair of its labels and a class.

    Parameters
    ----------
    y_true : array, series, dask array or dask series of shape (n,)
        Labels.
    y_pred : array, dask array, dask series or dataframe of shape (n,) or (n, n_classes)
        Probabilities: of the second class, or of all, in the order of sorted labels.
    sample_weight : vector of length n, optional
    labels : array of shape (n_classes,), optional
        All labels, if they do not all occur in `y_true`.
    client : distributed.Client, cluster or address, optional

    Returns
    -------
    float

    Raises
    ------
    ValueError
        There are more, or fewer, labels than columns; `y_true` has one that `labels` has not.

    Examples
    --------
    >>> import dask.array as da
    >>> from dps.metrics import log_loss
    >>> y = da.from_array(["no", "yes", "yes"], chunks=2)
    >>> round(log_loss(y, da.from_array([0.5, 0.5, 1.0], chunks=2)), 4)
    0.4621
    """
    sums = [part for part in of_partitions(_logs, y_true, y_pred, sample_weight, client) if part]
    if not sums:
        raise ValueError("Found array with 0 sample(s): a minimum of 1 is required.")
    found = np.unique(np.concatenate([classes for classes, _, _ in sums]))
    known = found if labels is None else np.unique(labels)
    unknown = found[~np.isin(found, known)]
    if len(unknown):
        raise ValueError(f"y_true holds the labels {unknown.tolist()}, which `labels` has not")
    n_columns = sums[0][1].shape[1]
    if len(known) != n_columns:
        raise ValueError(
            f"y_true holds {len(known)} labels, {known.tolist()}, and y_pred probabilities of "
            f"{n_columns}: give labels="
        )
    loss = sum(
        logs[np.arange(len(classes)), np.searchsorted(known, classes)].sum()
        for classes, logs, _ in sums
    )
    return float(np.divide(loss, sum(weight for _, _, weight in sums)))


def _logs(predicted: Any, y: Any, weights: NDArray[Any]) -> Any:
    """Labels; by label and class, the sum of minus the logarithms; the sum of weights."""
    if not len(y):  # of any dtype and width
        return None
    chances = predicted if predicted.dtype.kind == "f" else predicted.astype(np.float64)
    if chances.ndim == 1:
        chances = np.stack([1 - chances, chances], axis=1)
    if chances.min() < 0 or chances.max() > 1:
        raise ValueError("y_pred of a log loss must be probabilities, from 0 to 1")
    least = np.finfo(chances.dtype).eps
    logs = -np.log(np.clip(chances, least, 1 - least)).astype(np.float64)
    classes, codes = np.unique(y, return_inverse=True)
    columns = [np.bincount(codes, weights * column, len(classes)) for column in logs.T]
    return classes, np.stack(columns, axis=1), float(weights.sum())
