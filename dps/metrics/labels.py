"""Metrics of labels, from the weight of each pair of a label and a prediction.

A partition returns its distinct pairs, which are merged over partitions and passed to
scikit-learn's own metric. With several columns a pair consists of whole rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn import metrics

from dps.data.collections.partitions import is_dask
from dps.metrics.checks import of_labels
from dps.metrics.sums import like_sklearn, merged, same_shape

if TYPE_CHECKING:
    from dps._typing import ClientLike, VectorLike

_ARGUMENTS = """\
y_true : array, series or frame, dask array, series or frame of shape (n,) or (n, n_labels)
y_pred : likewise
    Labels; partition i belongs to partition i of `y_true`."""
_EXAMPLE = """\
>>> y, predicted = da.from_array([0, 1, 1, 0], chunks=2), da.from_array([0, 1, 0, 0], chunks=2)
"""


def _of_labels(name: str, summary: str, example: str) -> Callable[..., Any]:
    return like_sklearn(name, partial(_scored, name), summary, _ARGUMENTS, _EXAMPLE + example)


def _scored(
    name: str,
    y: VectorLike,
    predicted: VectorLike,
    weight: VectorLike | None,
    client: ClientLike | None,
    **options: Any,
) -> Any:
    """Return the metric of all pairs."""
    pairs = merged(_look, _merge, of_labels, y, predicted, weight, client)
    found = getattr(metrics, name)(pairs.y, pairs.predicted, sample_weight=pairs.weights, **options)
    if isinstance(found, str) and weight is None:  # its last column counts rows
        return re.sub(r" (\d+)\.0$", r"   \1", found, flags=re.MULTILINE)
    counts = name == "confusion_matrix" and options.get("normalize") is None
    return found.astype(np.int64) if counts and _are_whole(weight) else found


balanced_accuracy_score = _of_labels(
    "balanced_accuracy_score",
    "Mean of the recall of each label.",
    ">>> balanced_accuracy_score(y, predicted)\n0.75",
)
classification_report = _of_labels(
    "classification_report",
    "Precision, recall and F1 of each label, as a text or a dict.",
    ">>> classification_report(y, predicted, output_dict=True)['accuracy']\n0.75",
)
confusion_matrix = _of_labels(
    "confusion_matrix",
    "Rows, or their weight, of each label (rows) and prediction (columns).",
    ">>> confusion_matrix(y, predicted)\narray([[2, 0],\n       [1, 1]])",
)
f1_score = _of_labels(
    "f1_score",
    "Harmonic mean of precision and recall.",
    ">>> round(f1_score(y, predicted), 3)\n0.667",
)
fbeta_score = _of_labels(
    "fbeta_score",
    "Weighted harmonic mean of precision and recall.",
    ">>> round(fbeta_score(y, predicted, beta=2), 3)\n0.556",
)
jaccard_score = _of_labels(
    "jaccard_score",
    "Rows with a label that is predicted, over rows that have it or for which it is predicted.",
    ">>> jaccard_score(y, predicted)\n0.5",
)
matthews_corrcoef = _of_labels(
    "matthews_corrcoef",
    "Matthews correlation of labels and predictions, from -1 to 1.",
    ">>> round(matthews_corrcoef(y, predicted), 3)\n0.577",
)
precision_score = _of_labels(
    "precision_score",
    "Share of the rows with a predicted label that have it.",
    ">>> precision_score(y, predicted, average=None).round(3)\narray([0.667, 1.   ])",
)
recall_score = _of_labels(
    "recall_score",
    "Share of the rows with a label for which it is predicted.",
    ">>> recall_score(y, predicted)\n0.5",
)


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
