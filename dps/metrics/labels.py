"""Metrics of labels, from the weight of each pair of a label and a prediction.

A partition returns its distinct pairs, which are merged over partitions and passed to
scikit-learn's own metric. With several columns a pair consists of whole rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from dps.data.collections.partitions import is_dask
from dps.metrics.checks import of_labels
from dps.metrics.sums import Metric, merged, same_shape

if TYPE_CHECKING:
    from dps._typing import ClientLike, Label, VectorLike


@Metric()
def f1_score(
    y_true: VectorLike,
    y_pred: VectorLike,
    *,
    labels: VectorLike | None = None,
    pos_label: Label = 1,
    average: str | None = "binary",
    sample_weight: VectorLike | None = None,
    zero_division: float | Literal["warn"] = "warn",
    client: ClientLike | None = None,
) -> Any:
    """Harmonic mean of precision and recall.

    Parameters
    ----------
    y_true : array, series or frame, dask array, series or frame of shape (n,) or (n, n_labels)
    y_pred : likewise
        Labels; partition i belongs to partition i of `y_true`.
    labels : sequence, optional
        Which labels, or columns, count where there are several.
    pos_label : label, default=1
        The one that it is of with ``average="binary"``.
    average : {"binary", "macro", "micro", "weighted", "samples"} or None, default="binary"
        What is made of the scores of several labels: None is all of them.
    sample_weight : vector of length n, optional
    zero_division : {"warn", 0, 1, nan}, default="warn"
        What it is where nothing is to be divided by.
    client : distributed.Client, cluster or address, optional
        Client that computes. The default is Dask's scheduler.

    Returns
    -------
    float, or array of shape (n_labels,) with ``average=None``

    Raises
    ------
    ValueError
        They are not cut at the same rows, or are not of such labels.

    Examples
    --------
    >>> import dask.array as da
    >>> from dps.metrics import f1_score
    >>> f1_score(da.from_array([0, 1, 1, 0], chunks=2), da.from_array([0, 1, 0, 1], chunks=2))
    0.5
    """
    return _scored(
        "f1_score", y_true, y_pred, sample_weight, client, labels=labels,
        pos_label=pos_label, average=average, zero_division=zero_division,
    )  # fmt: skip


@Metric()
def precision_score(
    y_true: VectorLike,
    y_pred: VectorLike,
    *,
    labels: VectorLike | None = None,
    pos_label: Label = 1,
    average: str | None = "binary",
    sample_weight: VectorLike | None = None,
    zero_division: float | Literal["warn"] = "warn",
    client: ClientLike | None = None,
) -> Any:
    """Share of the rows with a predicted label that have it.

    Parameters
    ----------
    y_true, y_pred, labels, pos_label, average, sample_weight, zero_division, client
        As for :func:`f1_score`.

    Returns
    -------
    float, or array of shape (n_labels,) with ``average=None``

    Examples
    --------
    >>> import dask.array as da
    >>> from dps.metrics import precision_score
    >>> y, predicted = da.from_array([0, 1, 1, 0]), da.from_array([0, 1, 1, 1])
    >>> precision_score(y, predicted, average=None).round(3)
    array([1.   , 0.667])
    """
    return _scored(
        "precision_score", y_true, y_pred, sample_weight, client, labels=labels,
        pos_label=pos_label, average=average, zero_division=zero_division,
    )  # fmt: skip


@Metric()
def recall_score(
    y_true: VectorLike,
    y_pred: VectorLike,
    *,
    labels: VectorLike | None = None,
    pos_label: Label = 1,
    average: str | None = "binary",
    sample_weight: VectorLike | None = None,
    zero_division: float | Literal["warn"] = "warn",
    client: ClientLike | None = None,
) -> Any:
    """Share of the rows with a label for which it is predicted.

    Parameters
    ----------
    y_true, y_pred, labels, pos_label, average, sample_weight, zero_division, client
        As for :func:`f1_score`.

    Returns
    -------
    float, or array of shape (n_labels,) with ``average=None``

    Examples
    --------
    >>> import dask.array as da
    >>> from dps.metrics import recall_score
    >>> recall_score(da.from_array([0, 1, 1, 1]), da.from_array([0, 1, 1, 1]))
    1.0
    """
    return _scored(
        "recall_score", y_true, y_pred, sample_weight, client, labels=labels,
        pos_label=pos_label, average=average, zero_division=zero_division,
    )  # fmt: skip


@Metric()
def balanced_accuracy_score(
    y_true: VectorLike,
    y_pred: VectorLike,
    *,
    sample_weight: VectorLike | None = None,
    adjusted: bool = False,
    client: ClientLike | None = None,
) -> float:
    """Mean of the recall of each label.

    Parameters
    ----------
    y_true, y_pred, sample_weight, client
        As of :func:`f1_score`, of shape (n,).
    adjusted : bool, default=False
        Whether guessing is 0 rather than 1 / n_labels.

    Returns
    -------
    float

    Examples
    --------
    >>> import dask.array as da
    >>> from dps.metrics import balanced_accuracy_score
    >>> balanced_accuracy_score(da.from_array([0, 0, 0, 1]), da.from_array([0, 0, 0, 0]))
    0.5
    """
    return float(
        _scored(
            "balanced_accuracy_score", y_true, y_pred, sample_weight, client,
            adjusted=adjusted,
        )
    )  # fmt: skip


@Metric()
def confusion_matrix(
    y_true: VectorLike,
    y_pred: VectorLike,
    *,
    labels: VectorLike | None = None,
    sample_weight: VectorLike | None = None,
    normalize: str | None = None,
    client: ClientLike | None = None,
) -> np.ndarray:
    """Rows, or their weight, of each label (rows) and prediction (columns).

    Parameters
    ----------
    y_true, y_pred, sample_weight, client
        As of :func:`f1_score`, of shape (n,).
    labels : sequence, optional
        Which labels, in which order; by default all, sorted.
    normalize : {"true", "pred", "all"}, optional
        What is to sum to 1: rows, columns, or all.

    Returns
    -------
    array of shape (n_labels, n_labels)
        Of int64, or of float64 if weights have no integer dtype or `normalize` is given.

    Examples
    --------
    >>> import dask.array as da
    >>> from dps.metrics import confusion_matrix
    >>> confusion_matrix(da.from_array(["a", "b", "b"]), da.from_array(["a", "b", "a"]))
    array([[1, 0],
           [1, 1]])
    """
    found: np.ndarray = _scored(
        "confusion_matrix", y_true, y_pred, sample_weight, client, labels=labels,
        normalize=normalize,
    )  # fmt: skip
    return found.astype(np.int64) if normalize is None and _are_whole(sample_weight) else found


def _are_whole(weight: VectorLike | None) -> bool:
    """True if weights have an integer or boolean dtype, or are None."""
    if weight is None:
        return True
    if (dtype := getattr(weight, "dtype", None)) is None and not is_dask(weight):
        dtype = np.asarray(weight).dtype
    # Partitions show theirs when they are computed.
    return dtype is not None and dtype.kind in "biu"


class _Pairs(NamedTuple):
    """Distinct pairs."""

    predicted: np.ndarray  # (n,) or (n, n_labels) array
    y: np.ndarray
    weights: np.ndarray  # (n,) array


def _scored(
    metric: str,
    y: VectorLike,
    predicted: VectorLike,
    weight: VectorLike | None,
    client: ClientLike | None,
    **options: object,
) -> Any:
    """Apply a metric of scikit-learn to the pairs."""
    from sklearn import metrics

    pairs = merged(_look, _merge, of_labels, y, predicted, weight, client)
    return getattr(metrics, metric)(
        pairs.y, pairs.predicted, sample_weight=pairs.weights, **options
    )


def _look(predicted: np.ndarray, y: np.ndarray, weights: np.ndarray) -> _Pairs:
    same_shape(predicted, y)
    if y.ndim == 2:
        n_labels = y.shape[1]
        rows, places = np.unique(np.hstack([predicted, y]), axis=0, return_inverse=True)
        return _Pairs(rows[:, :n_labels], rows[:, n_labels:], np.bincount(places.ravel(), weights))
    of_predicted, one = np.unique(predicted, return_inverse=True)
    of_y, other = np.unique(y, return_inverse=True)
    cells, places = np.unique(one * len(of_y) + other, return_inverse=True)
    return _Pairs(
        of_predicted[cells // len(of_y)], of_y[cells % len(of_y)], np.bincount(places, weights)
    )


def _merge(parts: Sequence[_Pairs]) -> _Pairs:
    return _look(*map(np.concatenate, zip(*parts, strict=True)))
