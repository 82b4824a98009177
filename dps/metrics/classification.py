"""Metrics of labels and of probabilities, as sums over partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dps._warned import warn
from dps.metrics.checks import of_labels, of_scores
from dps.metrics.sums import Metric, of_partitions, same_shape
from dps.scores.formulas import equal, negative_logs

if TYPE_CHECKING:
    from dps._typing import ClientLike, Label, VectorLike


def _in_columns(y: Any, chances: VectorLike, options: dict[str, object]) -> tuple[Any, Any, Any]:
    """Expand probabilities of the second label to two columns, as scikit-learn's names expect."""
    chances = np.asarray(chances)
    named = options.get("pos_label") is not None
    if (
        chances.ndim == 1
        and not named
        and (options.get("labels") is not None or len(np.unique(y)) == 2)
    ):
        chances = np.stack([1 - chances, chances], axis=1)
    return y, chances, options


@Metric()
def accuracy_score(
    y_true: VectorLike,
    y_pred: VectorLike,
    *,
    normalize: bool = True,
    sample_weight: VectorLike | None = None,
    client: ClientLike | None = None,
) -> float:
    """Weighted share of rows whose label is predicted, or all of them where y has several columns.

    Parameters
    ----------
    y_true : array, series or frame, dask array, series or frame of shape (n,) or (n, n_labels)
    y_pred : likewise
        Labels; partition i belongs to partition i of `y_true`.
    normalize : bool, default=True
        If True, the result is divided by the weight of all rows.
    sample_weight : likewise, optional
    client : distributed.Client, cluster or address, optional
        Client that computes. The default is Dask's scheduler.

    Returns
    -------
    float
        NaN without any weight.

    Raises
    ------
    ValueError
        The arguments are cut at different rows.

    Examples
    --------
    >>> import dask.array as da
    >>> from dps.metrics import accuracy_score
    >>> accuracy_score(da.from_array([0, 1, 1, 0], chunks=2), da.from_array([0, 1, 0, 0], chunks=2))
    0.75
    """
    found = of_partitions(_hits, of_labels, y_true, y_pred, sample_weight, client)
    hits, total = np.sum(found, axis=0)
    return float(np.divide(hits, total) if normalize else hits)


def _hits(predicted: np.ndarray, y: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    same_shape(predicted, y)
    return float(weights[equal(y, predicted)].sum()), float(weights.sum())


@Metric()
def log_loss(
    y_true: VectorLike,
    y_proba: VectorLike,
    *,
    normalize: bool = True,
    sample_weight: VectorLike | None = None,
    labels: VectorLike | None = None,
    client: ClientLike | None = None,
) -> float:
    """Weighted mean of the negative logarithm of the probability of the true label.

    Probabilities are kept from 0 and 1 by the rounding error of their dtype, as scikit-learn
    does. A partition sends a number for each pair of its labels and a class.

    Parameters
    ----------
    y_true : array, series, dask array or dask series of shape (n,)
        Labels.
    y_proba : array, dask array, dask series or dataframe of shape (n,) or (n, n_classes)
        Probabilities: of the second class, or of all, in the order of sorted labels.
    normalize : bool, default=True
        If True, the result is divided by the weight of all rows.
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
    looked = totals(True, y_true, y_proba, sample_weight, client)
    at_labels, weight = log_loss_of(looked, labels), sum(part.weight for part in looked)
    return float(np.divide(at_labels, weight) if normalize else at_labels)


@Metric(_in_columns)
def brier_score_loss(
    y_true: VectorLike,
    y_proba: VectorLike,
    *,
    sample_weight: VectorLike | None = None,
    pos_label: Label = None,
    labels: VectorLike | None = None,
    scale_by_half: bool | str = "auto",
    client: ClientLike | None = None,
) -> float:
    """Weighted mean of the squared distance between probabilities and labels.

    Parameters
    ----------
    y_true : array, series, dask array or dask series of shape (n,)
        Labels.
    y_proba : array, dask array, dask series or dataframe of shape (n,) or (n, n_classes)
        Probabilities: of the second class, or of all, in the order of sorted labels.
    sample_weight : vector of length n, optional
    pos_label : label, optional
        The class of probabilities of shape (n,), by default the second.
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
    looked = totals(False, y_true, y_proba, sample_weight, client)
    found, n_classes = brier_of(looked, pos_label, labels)
    found /= sum(part.weight for part in looked)
    halved = n_classes == 2 if scale_by_half == "auto" else scale_by_half
    return float(found / 2 if halved else found)


def totals(
    of_logs: bool,
    y: VectorLike,
    chances: VectorLike,
    weight: VectorLike | None,
    client: ClientLike | None,
) -> list[Totals]:
    """Return the sums of each partition for log losses or Brier scores."""
    look = _logs if of_logs else _chances
    looked = of_partitions(look, of_scores, y, chances, weight, client)
    _warn_unless_ones(looked)
    return looked


def log_loss_of(looked: Sequence[Totals], labels: VectorLike | None) -> float:
    """Return the sum of log losses."""
    return _by_label(looked, labels)[0]


def brier_of(
    looked: Sequence[Totals], pos_label: Label, labels: VectorLike | None
) -> tuple[float, int]:
    """Return the sum of squared distances, and the number of classes."""
    vector = looked[0].vector
    if vector and pos_label is not None:
        looked, labels = _of_second(looked, pos_label), [False, True]
    at_labels, of_all = _by_label(looked, labels, one_will_do=vector)
    return of_all.sum() - 2 * at_labels + sum(part.of_class.sum() for part in looked), len(of_all)


class Totals(NamedTuple):
    """Sums over the rows of a partition."""

    rows: int
    classes: np.ndarray  # (k,) array, labels; numbers of the columns of y
    of_class: NDArray[np.float64]  # (k,) array, weight of the rows of each label
    at_label: NDArray[np.float64]  # (k, n_classes) array, a sum over rows by label and class
    of_all: NDArray[np.float64]  # (n_classes,) array, sum of squares by class
    weight: float
    vector: bool  # whether probabilities were a vector, for the second class
    ones: bool  # whether the probabilities of each row sum to one


def _warn_unless_ones(looked: Sequence[Totals]) -> None:
    if not all(part.ones for part in looked):
        warn(
            "The y_prob values do not sum to one. Make sure to pass probabilities.",
            UserWarning,
            stacklevel=4,
        )


def _of_second(looked: Sequence[Totals], label: object) -> list[Totals]:
    """Replace labels by indicators of one label."""
    found = np.unique(np.concatenate([part.classes for part in looked]))
    if len(found) > 2 or (len(found) == 2 and label not in found):
        raise ValueError(
            f"pos_label={label!r} must be one of two labels, and y_true holds {found.tolist()}"
        )
    return [
        part._replace(
            classes=np.array([False, True]),
            of_class=np.stack([part.of_class[side].sum() for side in (~its, its)]),
            at_label=np.stack([part.at_label[side].sum(axis=0) for side in (~its, its)]),
        )
        for part in looked
        for its in [part.classes == label]
    ]


def _by_label(
    looked: Sequence[Totals], labels: Any, one_will_do: bool = False
) -> tuple[float, NDArray[np.float64]]:
    """Return sums over all partitions: of each row at its own label, and by class."""
    found = np.unique(np.concatenate([part.classes for part in looked]))
    known = found if labels is None else np.unique(labels)
    if labels is not None and [*labels] != sorted(labels):
        warn(
            f"Labels passed were {[*labels]}. The columns of y_pred are taken to be those of the "
            f"sorted labels, {known.tolist()}.",
            UserWarning,
            stacklevel=4,
        )
    unknown = found[~np.isin(found, known)]
    if len(unknown):
        raise ValueError(f"y_true holds the labels {unknown.tolist()}, which `labels` has not")
    n_columns = looked[0].at_label.shape[1]
    if len(known) == 1 < n_columns and one_will_do and known.dtype.kind in "biuf":
        # As in scikit-learn, a single number is the second class, unless it is 0 or -1.
        only = int(known[0])
        known = np.array([only, 1] if only in (0, -1) else [only - 1, only])
    if len(known) != n_columns:
        raise ValueError(
            f"y_true holds {len(known)} labels, {known.tolist()}, and y_pred probabilities of "
            f"{n_columns}: give labels="
        )
    own = sum(
        part.at_label[np.arange(len(part.classes)), np.searchsorted(known, part.classes)].sum()
        for part in looked
    )
    return own, np.sum([part.of_all for part in looked], axis=0)


def _logs(predicted: np.ndarray, y: np.ndarray, weights: np.ndarray) -> Totals:
    """Sum minus the logarithms of probabilities."""
    return _summed(predicted, negative_logs, y, weights)


def _chances(predicted: np.ndarray, y: np.ndarray, weights: np.ndarray) -> Totals:
    """Sum probabilities, and by class their squares."""
    return _summed(predicted, np.asarray, y, weights)


def _two_columns(predicted: Any) -> np.ndarray:
    """Return probabilities as (n, n_classes), also from a vector for two classes."""
    chances: np.ndarray
    chances = predicted if predicted.dtype.kind == "f" else predicted.astype(np.float64)
    if chances.ndim == 1:
        chances = np.stack([1 - chances, chances], axis=1)
    if chances.min() < 0 or chances.max() > 1:
        raise ValueError("y_pred must be probabilities, from 0 to 1")
    return chances


def _summed(
    predicted: np.ndarray,
    function: Callable[[np.ndarray], np.ndarray],
    y: np.ndarray,
    weights: np.ndarray,
) -> Totals:
    """Sum a function of probabilities."""
    chances = _two_columns(predicted)
    tolerance = float(np.finfo(chances.dtype).eps) ** 0.5
    ones = bool((np.abs(chances.sum(axis=1) - 1) <= tolerance).all())
    values = function(chances).astype(np.float64)
    if y.ndim == 2:  # a column of 0 and 1 for each label
        same_shape(chances, y)
        at_label = np.diag((weights[:, None] * y * values).sum(axis=0))
        classes: Any = np.arange(y.shape[1])
        of_class = weights @ y
    else:
        classes, codes = np.unique(y, return_inverse=True)
        of_class = np.bincount(codes, weights, len(classes))
        columns = [np.bincount(codes, weights * column, len(classes)) for column in values.T]
        at_label = np.stack(columns, axis=1)
    return Totals(
        len(y), classes, of_class, at_label, weights @ values**2, float(weights.sum()),
        predicted.ndim == 1, ones,
    )  # fmt: skip
