"""ROC and precision-recall curves and their areas, from counts that partitions merge.

A partition's scores become integers of the same order (the bits of a float64), each with the weight
of its rows by class. Two such lists can be merged. If one is longer than `_MAX_SCORES`, trailing
bits are dropped until it is not. The result depends on all scores, but not on the order of merging.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn import metrics
from sklearn.exceptions import UndefinedMetricWarning

from dps._warned import warn
from dps.metrics.checks import of_scores
from dps.metrics.sums import Metric, merged, same_shape

if TYPE_CHECKING:
    from dps._typing import ClientLike, Label, VectorLike

_TOP = np.uint64(1 << 63)  # the sign of a float64
_MAX_SCORES = 1 << 18  # largest number of distinct scores, 24 bytes each


def _second_of_two(y: Any, scores: Any, options: dict[str, object]) -> tuple[Any, Any, Any]:
    """Return the second of two columns."""
    if np.ndim(scores) == 2 and np.ndim(y) == 1 and np.shape(scores)[1] == 2:
        scores = np.asarray(scores)[:, 1]
    return y, scores, options


@Metric(_second_of_two)
def roc_auc_score(
    y_true: VectorLike,
    y_score: VectorLike,
    *,
    average: str | None = "macro",
    sample_weight: VectorLike | None = None,
    max_fpr: float | None = None,
    multi_class: str = "raise",
    labels: VectorLike | None = None,
    client: ClientLike | None = None,
) -> Any:
    """Chance that a row of the second class has a higher score than one of the first.

    For several classes, or labels in columns, it is a mean of such areas, as in scikit-learn. It is
    exact for up to 262,144 distinct scores in a column. For more, scores are compared by their
    leading bits, so that at most this number of distinct scores remains. Equal pairs of rows
    count as half, so the error is at most half the share of pairs that have become equal: about
    10^-5 if scores are spread out.

    Parameters
    ----------
    y_true : array, series, dask array, series or dataframe of shape (n,) or (n, n_labels)
        Labels of two classes or more; or a column of 0 and 1 for each label.
    y_score : array, series, dask array, series or dataframe of shape (n,), (n, 2) or (n, n_classes)
        Scores, from `decision_function` or `predict_proba`. Of two columns the second is used. For
        more than two classes they are probabilities, in the order of sorted labels.
    average : {"macro", "weighted"} or None, default="macro"
        The mean of several areas, the mean weighted by the rows of each class, or an array of all.
    sample_weight : vector of length n, optional
    max_fpr : float, optional
        The area up to that share of rows of the first class, standardised (McClish, 1989).
    multi_class : {"raise", "ovr", "ovo"}, default="raise"
        For more than two classes, the areas of each against the rest, or of each pair (Hand and
        Till, 2001; without weights).
    labels : array of shape (n_classes,), optional
        All labels, if they do not all occur in `y_true`.
    client : distributed.Client, cluster or address, optional
        Client that computes. The default is Dask's scheduler.

    Returns
    -------
    float, or array of shape (n_classes,) with ``average=None``

    Raises
    ------
    ValueError
        `y_true` does not hold the classes that are compared, with weight; scores are NaN; a
        parameter is none of these.

    Examples
    --------
    >>> import dask.array as da
    >>> from dps.metrics import roc_auc_score
    >>> y = da.from_array([0, 0, 1, 1], chunks=2)
    >>> roc_auc_score(y, da.from_array([0.1, 0.4, 0.35, 0.8], chunks=2))
    0.75
    """
    if average not in ("macro", "weighted", None):
        raise ValueError(f"average must be 'macro', 'weighted' or None, got {average!r}")
    if multi_class not in ("raise", "ovr", "ovo"):
        raise ValueError(f"multi_class must be 'raise', 'ovr' or 'ovo', got {multi_class!r}")
    columns = merged(_look, _merge_columns, of_scores, y_true, y_score, sample_weight, client)
    if not columns.several_classes:
        areas = [_binary(counts, max_fpr) for counts in columns.counts]
        if len(areas) == 1:
            return areas[0]
        found = [counts.weights[:, counts.classes == 1].sum() for counts in columns.counts]
        return _averaged(areas, found, average)
    if max_fpr not in (None, 1):
        raise ValueError(
            "Partial AUC computation not available in multiclass setting, 'max_fpr' must be set to "
            f"`None`, received `max_fpr={max_fpr}` instead"
        )
    n_columns, found = len(columns.counts), columns.counts[0].classes
    known = found if labels is None else _in_order(labels)
    if multi_class == "raise":
        raise ValueError(f"multi_class must be in ('ovo', 'ovr'): y_pred has {n_columns} columns")
    if len(known) != n_columns or len(np.setdiff1d(found, known)):
        raise ValueError(
            f"y_true holds {len(found)} labels, {found.tolist()}, and y_pred probabilities of "
            f"{n_columns}: give labels="
        )
    places = np.searchsorted(known, found)
    by_class = []
    for counts in columns.counts:
        weights = np.zeros((len(counts.keys), n_columns))
        weights[:, places] = counts.weights
        by_class.append(weights)
    if multi_class == "ovr":
        sides = [
            (np.delete(weights, k, axis=1).sum(axis=1), weights[:, k])
            for k, weights in enumerate(by_class)
        ]
        areas = [_area(*side) for side in sides]
        return _averaged(areas, [of_class.sum() for _, of_class in sides], average)
    if average is None:
        raise NotImplementedError("average=None is not implemented for multi_class='ovo'.")
    if sample_weight is not None:
        raise ValueError(
            "sample_weight is not supported for multiclass one-vs-one ROC AUC: use 'ovr'"
        )
    present = [k for k in range(n_columns) if by_class[k][:, k].any()]
    return _averaged(*_of_pairs(by_class, present), average)


@Metric(_second_of_two)
def average_precision_score(
    y_true: VectorLike,
    y_score: VectorLike,
    *,
    average: str | None = "macro",
    pos_label: Label = 1,
    sample_weight: VectorLike | None = None,
    client: ClientLike | None = None,
) -> Any:
    """Mean precision over thresholds from high to low, weighted by the recall that each adds.

    Exact for as many distinct scores as :func:`roc_auc_score`.

    Parameters
    ----------
    y_true : array, series, dask array, series or dataframe of shape (n,) or (n, n_labels)
        Labels; or a column of 0 and 1 for each label.
    y_score : array, series, dask array, series or dataframe of shape (n,), (n, 2) or (n, n_classes)
        Scores. Of two columns the second is used. For more than two classes a column for each, in
        the order of sorted labels.
    average : {"macro", "weighted"} or None, default="macro"
        What is made of several: their mean, that by the weight of each, or all of them.
    pos_label : label, default=1
        Of two classes the one that is to be found.
    sample_weight : vector of length n, optional
    client : distributed.Client, cluster or address, optional

    Returns
    -------
    float, or array of shape (n_classes,) with ``average=None``

    Raises
    ------
    ValueError
        Scores are NaN; `pos_label` is none of the labels; there is not a column for each class.

    Examples
    --------
    >>> import dask.array as da
    >>> from dps.metrics import average_precision_score
    >>> y = da.from_array([0, 0, 1, 1], chunks=2)
    >>> round(average_precision_score(y, da.from_array([0.1, 0.4, 0.35, 0.8], chunks=2)), 4)
    0.8333
    """
    if average not in ("macro", "weighted", None):
        raise ValueError(f"average must be 'macro', 'weighted' or None, got {average!r}")
    columns = merged(
        _look_at_scores, _merge_columns, of_scores, y_true, y_score, sample_weight, client
    )
    found = columns.counts[0].classes
    wanted: Any = [pos_label] * len(columns.counts)
    if columns.in_columns and pos_label != 1:
        raise ValueError(
            "Parameter pos_label is fixed to 1 for multilabel-indicator y_true. Do not set "
            "pos_label or set pos_label to 1."
        )
    if len(found) > 2 and pos_label != 1:
        raise ValueError(
            "Parameter pos_label is fixed to 1 for multiclass y_true. Do not set pos_label or set "
            "pos_label to 1."
        )
    if len(found) > 2 and not columns.several_classes:
        raise ValueError(
            "`y_score` needs to be of shape `(n_samples, n_classes)`, since `y_true` contains "
            f"multiple classes: {found.tolist()}"
        )
    if columns.several_classes:
        if len(found) != len(columns.counts):
            raise ValueError(
                f"y_true holds {len(found)} labels, {found.tolist()}, and y_score has "
                f"{len(columns.counts)} columns"
            )
        wanted = found
    elif not columns.in_columns and len(found) == 2 and pos_label not in found:
        raise ValueError(f"pos_label={pos_label} is not a valid label. It should be one of {found}")
    sides = []
    for counts, label in zip(columns.counts, wanted, strict=True):
        of_class = counts.weights[:, counts.classes == label].sum(axis=1)
        sides.append((of_class, counts.weights.sum(axis=1) - of_class))
    areas = [_of_ranks("average_precision_score", *side) for side in sides]
    if len(areas) == 1:
        return areas[0]
    return _averaged(areas, [of_class.sum() for of_class, _ in sides], average)


@Metric(_second_of_two)
def roc_curve(
    y_true: VectorLike,
    y_score: VectorLike,
    *,
    pos_label: Label = None,
    sample_weight: VectorLike | None = None,
    drop_intermediate: bool = True,
    client: ClientLike | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shares of the rows of each class whose scores reach a threshold, for all thresholds.

    A curve has up to 262,144 distinct thresholds. Of more, trailing bits are dropped.

    Parameters
    ----------
    y_true : array, series, dask array or series of shape (n,)
        Labels of two classes.
    y_score : array, series, dask array, series or dataframe of shape (n,) or (n, 2)
        Scores, from `decision_function` or `predict_proba`. Of two columns the second is used.
    pos_label : label, optional
        The class of the true positives; 1 by default.
    sample_weight : vector of length n, optional
    drop_intermediate : bool, default=True
        Whether to leave out thresholds that do not change the shape of the curve.
    client : distributed.Client, cluster or address, optional

    Returns
    -------
    fpr, tpr, thresholds : arrays of shape (n_thresholds,)
        False positive rate, true positive rate and thresholds, which descend from infinity.

    Raises
    ------
    ValueError
        Scores are NaN; there are not two classes; `pos_label` is needed.

    Examples
    --------
    >>> import dask.array as da
    >>> from dps.metrics import roc_curve
    >>> y = da.from_array([0, 0, 1, 1], chunks=2)
    >>> fpr, tpr, thresholds = roc_curve(y, da.from_array([0.1, 0.4, 0.35, 0.8], chunks=2))
    >>> tpr
    array([0. , 0.5, 0.5, 1. , 1. ])
    """
    rows = _scores_by_class(y_true, y_score, sample_weight, client)
    found: tuple[np.ndarray, np.ndarray, np.ndarray] = metrics.roc_curve(
        *rows[:2], pos_label=pos_label, sample_weight=rows[2], drop_intermediate=drop_intermediate
    )
    return found


@Metric(_second_of_two)
def precision_recall_curve(
    y_true: VectorLike,
    y_score: VectorLike,
    *,
    pos_label: Label = None,
    sample_weight: VectorLike | None = None,
    drop_intermediate: bool = False,
    client: ClientLike | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Precision and recall where the rows whose scores reach a threshold are predicted.

    Parameters
    ----------
    y_true, y_score, pos_label, sample_weight, drop_intermediate, client
        As for :func:`roc_curve`.

    Returns
    -------
    precision, recall : arrays of shape (n_thresholds + 1,)
        The last ones are 1 and 0.
    thresholds : array of shape (n_thresholds,)
        Ascending.
    """
    rows = _scores_by_class(y_true, y_score, sample_weight, client)
    found: tuple[np.ndarray, np.ndarray, np.ndarray] = metrics.precision_recall_curve(
        *rows[:2], pos_label=pos_label, sample_weight=rows[2], drop_intermediate=drop_intermediate
    )
    return found


def _scores_by_class(
    y: VectorLike,
    predicted: VectorLike,
    weight: VectorLike | None,
    client: ClientLike | None,
) -> tuple[np.ndarray, NDArray[np.float64], NDArray[np.float64]]:
    """Return labels, distinct scores and weights of rows."""
    columns = merged(_look_at_scores, _merge_columns, of_scores, y, predicted, weight, client)
    if len(columns.counts) > 1 or columns.in_columns:
        raise ValueError(f"y_score has {len(columns.counts)} columns: a curve needs one, or two")
    (counts,) = columns.counts
    labels = np.repeat(counts.classes, len(counts.keys))
    return labels, np.tile(counts.scores, len(counts.classes)), counts.weights.T.ravel()


def _of_ranks(metric: str, found: np.ndarray, others: np.ndarray, **options: object) -> float:
    """Return scikit-learn's metric from the weights of relevant and other rows, in order."""
    scores = np.tile(np.arange(len(found)), 2)
    of_class, weights = np.repeat([1, 0], len(found)), np.concatenate([found, others])
    some = weights > 0
    return float(
        getattr(metrics, metric)(
            of_class[some], scores[some], sample_weight=weights[some], **options
        )
    )


def _of_pairs(
    by_class: Sequence[np.ndarray], present: Sequence[int]
) -> tuple[list[Any], list[Any]]:
    """Return the area of each pair of classes, averaged over both scores; and their rows."""
    areas, rows = [], []
    for a, b in combinations(present, 2):
        by_a = _area(by_class[a][:, b], by_class[a][:, a])
        by_b = _area(by_class[b][:, a], by_class[b][:, b])
        areas.append((by_a + by_b) / 2)
        rows.append(by_class[a][:, [a, b]].sum())
    return areas, rows


def _averaged(areas: Sequence[float], weights: Sequence[float], average: str | None) -> Any:
    if average is None:
        return np.array(areas)
    return float(np.average(areas, weights=weights if average == "weighted" else None))


def _in_order(labels: Any) -> np.ndarray:
    """Return the sorted labels that columns of scores belong to."""
    given, known = np.asarray(labels), np.unique(labels)
    if len(known) < len(given):
        raise ValueError(f"Parameter 'labels' must be unique: got {given.tolist()}")
    if not np.array_equal(given, known):
        raise ValueError(
            f"Parameter 'labels' must be ordered: got {given.tolist()}, and the columns of y_pred "
            f"are those of {known.tolist()}"
        )
    return known


def _binary(counts: _Counts, max_fpr: float | None) -> float:
    if len(counts.classes) > 2:
        raise ValueError(
            "`y_score` needs to be of shape `(n_samples, n_classes)`, since `y_true` contains "
            f"multiple classes: {counts.classes.tolist()}"
        )
    if len(counts.classes) < 2:
        return _undefined()
    if max_fpr not in (None, 1):
        first, second = counts.weights.T
        return _of_ranks("roc_auc_score", second, first, max_fpr=max_fpr)
    return _area(*counts.weights.T)


def _undefined() -> float:
    warn(
        "Only one class is present in y_true. ROC AUC score is not defined in that case.",
        UndefinedMetricWarning,
        stacklevel=5,
    )
    return float("nan")


def _area(first: np.ndarray, second: np.ndarray) -> float:
    """Return the area for two classes from their weights at sorted scores."""
    below = np.cumsum(first) - first / 2  # equal scores count as half
    pairs = first.sum() * second.sum()
    return float(second @ below / pairs) if pairs else _undefined()


class _Columns(NamedTuple):
    """Counts for each column of scores."""

    several_classes: bool  # whether there are more than two classes, one per row
    in_columns: bool  # whether y has a column for each label
    counts: list[_Counts]


def _look(predicted: np.ndarray, y: np.ndarray, weights: np.ndarray) -> _Columns:
    found = _look_at_scores(predicted, y, weights)
    if not found.several_classes:
        return found
    if not np.allclose(predicted.sum(axis=1), 1, rtol=1e-5, atol=1e-5):
        raise ValueError(
            f"y_pred has {predicted.shape[1]} columns: of several classes these must be "
            "probabilities, which sum to 1 in each row, and multi_class 'ovr' or 'ovo'"
        )
    return found


def _look_at_scores(predicted: np.ndarray, y: np.ndarray, weights: np.ndarray) -> _Columns:
    if y.ndim == 2:
        same_shape(predicted, y)
        pairs = zip(predicted.T, y.T, strict=True)
        return _Columns(False, True, [_counts(scores, of, weights) for scores, of in pairs])
    if predicted.ndim == 1 or predicted.shape[1] == 2:
        scores = predicted if predicted.ndim == 1 else predicted[:, 1]
        return _Columns(False, False, [_counts(scores, y, weights)])
    return _Columns(True, False, [_counts(scores, y, weights) for scores in predicted.T])


def _merge_columns(parts: Sequence[_Columns]) -> _Columns:
    several = any(part.several_classes for part in parts)
    widths = {len(part.counts) for part in parts}
    if len(widths) > 1:
        raise ValueError(f"y_pred has {sorted(widths)} columns in different partitions")
    columns = zip(*(part.counts for part in parts), strict=True)
    in_columns = parts[0].in_columns
    return _Columns(several, in_columns, [_merge(list(counts)) for counts in columns])


class _Counts(NamedTuple):
    """Distinct scores in order, with the weight of each by class."""

    dropped: int  # number of bits that were dropped from the keys
    keys: NDArray[np.uint64]  # (n,) uint64 array
    classes: np.ndarray  # (k,) array, sorted
    weights: NDArray[np.float64]  # (n, k) float64 array

    @property
    def scores(self) -> NDArray[np.float64]:
        """The scores of the keys, (n,); with zeros for dropped bits."""
        bits = self.keys << np.uint64(self.dropped)
        return np.where(bits & _TOP, bits ^ _TOP, ~bits).view(np.float64)


def _counts(predicted: np.ndarray, y: np.ndarray, weights: np.ndarray) -> _Counts:
    scores = np.array(predicted, np.float64) + 0.0  # turns -0.0 into 0.0
    bits = scores.view(np.uint64)
    keys = np.where(bits & _TOP, ~bits, bits | _TOP)
    classes, codes = np.unique(y, return_inverse=True)
    return _joined(0, keys, classes, codes, weights)


def _joined(
    dropped: int,
    keys: NDArray[np.uint64],
    classes: np.ndarray,
    codes: np.ndarray,
    weights: np.ndarray,
) -> _Counts:
    """Merge equal keys; `codes` are the classes of the weights."""
    distinct, places = np.unique(keys, return_inverse=True)
    while len(distinct) > _MAX_SCORES:
        dropped += 1
        shorter, again = np.unique(distinct >> np.uint64(1), return_inverse=True)
        distinct, places = shorter, again[places]
    shape = len(distinct), len(classes)
    cells = np.bincount(places * len(classes) + codes, weights, minlength=shape[0] * shape[1])
    return _Counts(dropped, distinct, classes, np.asarray(cells, np.float64).reshape(shape))


def _merge(found: Sequence[_Counts]) -> _Counts:
    dropped = max(part.dropped for part in found)
    classes = np.unique(np.concatenate([part.classes for part in found]))
    keys, codes, weights = [], [], []
    for part in found:
        shorter = part.keys >> np.uint64(dropped - part.dropped)
        keys.append(np.repeat(shorter, len(part.classes)))
        codes.append(np.tile(np.searchsorted(classes, part.classes), len(part.keys)))
        weights.append(part.weights.ravel())
    return _joined(
        dropped, np.concatenate(keys), classes, np.concatenate(codes), np.concatenate(weights)
    )
