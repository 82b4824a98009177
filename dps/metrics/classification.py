"""Metrics of labels and of probabilities, as sums over partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps.metrics.sums import of_partitions, same_shape
from dps.scores.formulas import equal, negative_logs


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
    return float(weights[equal(y, predicted)].sum()), float(weights.sum())


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
    looked = of_partitions(_logs, y_true, y_pred, sample_weight, client)
    of_labels, _, weight = _by_label(looked, labels)
    return float(np.divide(of_labels, weight))


def brier_score_loss(
    y_true: Any,
    y_proba: Any,
    *,
    sample_weight: Any = None,
    labels: Any = None,
    scale_by_half: bool | str = "auto",
    client: Any = None,
) -> float:
    """Weighted mean of the squared distance between probabilities and what is true.

    Parameters
    ----------
    y_true : array, series, dask array or dask series of shape (n,)
        Labels.
    y_proba : array, dask array, dask series or dataframe of shape (n,) or (n, n_classes)
        Probabilities: of the second class, or of all, in the order of sorted labels.
    sample_weight : vector of length n, optional
    labels : array of shape (n_classes,), optional
        All labels, if they do not all occur in `y_true`.
    scale_by_half : bool or "auto", default="auto"
        Whether it is halved, so that it is from 0 to 1: by default that of two classes.
    client : distributed.Client, cluster or address, optional

    Returns
    -------
    float

    Raises
    ------
    ValueError
        As :func:`log_loss`.

    Examples
    --------
    >>> import dask.array as da
    >>> from dps.metrics import brier_score_loss
    >>> y = da.from_array(["no", "yes", "yes"], chunks=2)
    >>> round(brier_score_loss(y, da.from_array([0.5, 0.5, 1.0], chunks=2)), 4)
    0.1667
    """
    looked = of_partitions(_chances, y_true, y_proba, sample_weight, client)
    of_labels, of_all, weight = _by_label(looked, labels)
    found = (of_all.sum() - 2 * of_labels + weight) / weight
    halved = len(of_all) == 2 if scale_by_half == "auto" else scale_by_half
    return float(found / 2 if halved else found)


#: Labels; by label and class, a sum over rows; by class, another; the sum of weights.
_Sums = tuple[NDArray[Any], NDArray[np.float64], NDArray[np.float64], float]


def _by_label(
    looked: Sequence[_Sums | None], labels: Any
) -> tuple[float, NDArray[np.float64], float]:
    """Sums over all partitions: of each row at its own label, by class, and of weights."""
    sums = [part for part in looked if part is not None]
    if not sums:
        raise ValueError("Found array with 0 sample(s): a minimum of 1 is required.")
    found = np.unique(np.concatenate([classes for classes, *_ in sums]))
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
    own = sum(
        at_label[np.arange(len(classes)), np.searchsorted(known, classes)].sum()
        for classes, at_label, _, _ in sums
    )
    return own, np.sum([of_all for *_, of_all, _ in sums], axis=0), sum(part[-1] for part in sums)


def _logs(predicted: Any, y: Any, weights: NDArray[Any]) -> _Sums | None:
    """Minus the logarithms of probabilities."""
    if not len(y):  # of any dtype and width
        return None
    return _summed(negative_logs(_two_columns(predicted)), y, weights)


def _chances(predicted: Any, y: Any, weights: NDArray[Any]) -> _Sums | None:
    """Probabilities; by class, their squares."""
    return _summed(_two_columns(predicted), y, weights) if len(y) else None


def _two_columns(predicted: Any) -> NDArray[Any]:
    """Probabilities, (n, n_classes), also of those of the second class alone."""
    chances: NDArray[Any]
    chances = predicted if predicted.dtype.kind == "f" else predicted.astype(np.float64)
    if chances.ndim == 1:
        chances = np.stack([1 - chances, chances], axis=1)
    if chances.min() < 0 or chances.max() > 1:
        raise ValueError("y_pred must be probabilities, from 0 to 1")
    return chances


def _summed(values: NDArray[Any], y: Any, weights: NDArray[Any]) -> _Sums:
    classes, codes = np.unique(y, return_inverse=True)
    values = values.astype(np.float64)
    columns = [np.bincount(codes, weights * column, len(classes)) for column in values.T]
    return classes, np.stack(columns, axis=1), weights @ values**2, float(weights.sum())
