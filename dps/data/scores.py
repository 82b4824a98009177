"""Scores of rows for validation, made of sums that each rank has of its own rows.

What is no sum over rows, such as an area under a curve, is for `dps.metrics`, after a fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps.data.targets import TargetEncoding
from dps.losses import Loss

__all__ = ["MOST_SUMS", "RowScore", "about", "get_score"]

#: Sums that a rank may report.
MOST_SUMS = 48


@dataclass(frozen=True)
class RowScore:
    """The weighted mean over rows of a function of targets and predictions.

    Parameters
    ----------
    function : callable
        ``function(y_true, y_pred)`` is a number a row, (n,), the higher the better: of an error
        return minus that. It is given some thousand rows at a time. On a cluster it must lie in a
        module that the workers can import.
    response_method : {"predict", "predict_proba", "decision_function"}, default="predict"
        What ``y_pred`` is: labels, or of a regression numbers; probabilities, a column a class in
        the order of ``classes_``; or raw outputs, a column each.

    Examples
    --------
    >>> import numpy as np
    >>> from dps import LinearRegressor
    >>> from dps.metrics import RowScore
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> near = RowScore(lambda y_true, y_pred: abs(y_true - y_pred) < 0.5)
    >>> model = LinearRegressor(early_stopping=True, scoring=near, random_state=0).fit(X, X[:, 0])
    >>> model.history_[-1]["validation_score"]
    1.0
    """

    function: Callable[[NDArray[Any], NDArray[Any]], Any]
    response_method: str = "predict"

    def __post_init__(self) -> None:
        methods = ("predict", "predict_proba", "decision_function")
        if not callable(self.function):
            raise TypeError(f"function of a RowScore must be callable, got {self.function!r}")
        if self.response_method not in methods:
            raise ValueError(
                f"response_method must be one of {methods}, got {self.response_method!r}"
            )

    def sums(
        self, targets: TargetEncoding, y: NDArray[Any], raw: NDArray[Any], weight: Any
    ) -> NDArray[np.float64]:
        """What a rank adds up over its rows: weighted sums, (k,)."""
        rows = self._of_rows(targets, y, raw)
        ones = np.ones(len(raw)) if weight is None else np.asarray(weight, np.float64)
        sums: NDArray[np.float64] = np.atleast_1d(ones @ np.asarray(rows, np.float64))
        return sums

    def value(self, sums: NDArray[np.float64], weight: float) -> float:
        """The score, from sums over the rows of all ranks, (k,) or longer, and of their weights."""
        return float(sums[0] / weight)

    def _of_rows(self, targets: TargetEncoding, y: NDArray[Any], raw: NDArray[Any]) -> Any:
        scored = np.asarray(self.function(*self._seen(targets, y, raw)))
        if scored.shape != (len(raw),):
            raise ValueError(
                f"the function of a RowScore must return a number for each of {len(raw)} rows, got "
                f"shape {scored.shape}"
            )
        return scored

    def _seen(self, targets: TargetEncoding, y: NDArray[Any], raw: NDArray[Any]) -> Any:
        """Targets and predictions as users know them."""
        loss, classes = targets.loss, targets.classes
        if self.response_method == "decision_function":
            predicted = raw[:, 0] if raw.shape[1] == 1 else raw
        elif classes is None:
            predicted = loss.mean(raw).astype(np.float64)
            predicted, y = predicted[:, 0] if y.ndim == 1 else predicted, y.astype(np.float64)
        elif self.response_method == "predict_proba":
            predicted = loss.probabilities(raw)
        else:
            predicted = raw > 0 if targets.multilabel else classes[_codes(raw)]
        if classes is None or targets.multilabel:
            return (y if classes is None else targets.codes(y)), predicted
        return classes[targets.codes(y)], predicted


def _codes(raw: NDArray[Any]) -> NDArray[np.intp]:
    """Codes of the classes that are predicted."""
    codes: NDArray[np.intp]
    codes = (raw[:, 0] > 0).astype(np.intp) if raw.shape[1] == 1 else raw.argmax(axis=1)
    return codes


@dataclass(frozen=True)
class _LogLoss(RowScore):
    """Minus the log loss, of probabilities kept from 0 as scikit-learn keeps them."""

    def _of_rows(self, targets: TargetEncoding, y: NDArray[Any], raw: NDArray[Any]) -> Any:
        chances, codes = targets.loss.probabilities(raw), targets.codes(y)
        least = np.finfo(chances.dtype).eps
        if targets.multilabel:
            logs = np.log(np.clip(np.where(codes, chances, 1 - chances), least, 1 - least))
            return logs.sum(axis=1)
        true = np.take_along_axis(chances, codes[:, None], axis=1)[:, 0]
        return np.log(np.clip(true, least, 1 - least))


@dataclass(frozen=True)
class _Brier(RowScore):
    """Minus the squared distance of probabilities from what is true; of two classes half of it."""

    def _of_rows(self, targets: TargetEncoding, y: NDArray[Any], raw: NDArray[Any]) -> Any:
        chances = targets.loss.probabilities(raw).astype(np.float64)
        true = targets.codes(y)[:, None] == np.arange(chances.shape[1])
        distance = ((chances - true) ** 2).sum(axis=1)
        return -distance / 2 if chances.shape[1] == 2 else -distance


@dataclass(frozen=True)
class _OfLabels(RowScore):
    """Precision, recall or their mean, from the weight of rows that have, and are given, a label.

    Parameters
    ----------
    what : {"precision", "recall", "f1"}
    average : {"binary", "macro", "micro", "weighted", "balanced"}
        "macro" is the mean over labels that there are, "balanced" over those that are true.
    n_labels : int
    """

    what: str = "f1"
    average: str = "macro"
    n_labels: int = 0

    def _of_rows(self, targets: TargetEncoding, y: NDArray[Any], raw: NDArray[Any]) -> Any:
        true, predicted = targets.codes(y) > 0, raw > 0
        if not targets.multilabel:
            labels = np.arange(self.n_labels)
            true, predicted = (of[:, None] == labels for of in (targets.codes(y), _codes(raw)))
        return np.hstack([true & predicted, predicted, true])

    def value(self, sums: NDArray[np.float64], weight: float) -> float:
        both, predicted, true = sums[: 3 * self.n_labels].reshape(3, -1)
        if self.average == "binary":
            both, predicted, true = both[1:], predicted[1:], true[1:]
        elif self.average == "micro":
            both, predicted, true = (np.array([of.sum()]) for of in (both, predicted, true))
        below = {"precision": predicted, "recall": true, "f1": (predicted + true) / 2}[self.what]
        each = np.divide(both, below, out=np.zeros_like(both), where=below > 0)
        there = true > 0 if self.average == "balanced" else true + predicted > 0
        weights = true[there] if self.average == "weighted" else None
        return float(np.average(each[there], weights=weights)) if there.any() else 0.0


@dataclass(frozen=True)
class _R2(RowScore):
    """The coefficient of determination, of several outputs their mean.

    Parameters
    ----------
    centre : tuple of float
        Near the mean of y, so that little is lost in the difference of its squares.
    """

    centre: tuple[float, ...] = (0.0,)

    def _of_rows(self, targets: TargetEncoding, y: NDArray[Any], raw: NDArray[Any]) -> Any:
        true, predicted = (of.reshape(raw.shape) for of in self._seen(targets, y, raw))
        about = true - np.array(self.centre)
        return np.hstack([(true - predicted) ** 2, about, about**2])

    def value(self, sums: NDArray[np.float64], weight: float) -> float:
        missed, mean, square = sums[: 3 * len(self.centre)].reshape(3, -1) / weight
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.mean(1 - missed / (square - mean**2)))


def _equal(y_true: NDArray[Any], y_pred: NDArray[Any]) -> NDArray[Any]:
    same: NDArray[Any] = np.equal(y_true, y_pred).reshape(len(y_true), -1).all(axis=1)
    return same


def _squared(y_true: NDArray[Any], y_pred: NDArray[Any]) -> NDArray[Any]:
    return -_of_outputs((y_true - y_pred) ** 2)


def _absolute(y_true: NDArray[Any], y_pred: NDArray[Any]) -> NDArray[Any]:
    return -_of_outputs(np.abs(y_true - y_pred))


def _of_outputs(values: NDArray[Any]) -> NDArray[Any]:
    return values if values.ndim == 1 else values.mean(axis=1)


#: By scikit-learn's names, of each task.
_SCORES: dict[str, dict[str, RowScore]] = {
    "classification": {
        "accuracy": RowScore(_equal),
        "neg_log_loss": _LogLoss(_equal, "predict_proba"),
        "neg_brier_score": _Brier(_equal, "predict_proba"),
        "balanced_accuracy": _OfLabels(_equal, what="recall", average="balanced"),
        **{
            what + ("" if average == "binary" else f"_{average}"): _OfLabels(
                _equal, what=what, average=average
            )
            for what in ("f1", "precision", "recall")
            for average in ("binary", "macro", "micro", "weighted")
        },
    },
    "regression": {
        "r2": _R2(_squared),
        "neg_mean_squared_error": RowScore(_squared),
        "neg_mean_absolute_error": RowScore(_absolute),
    },
}


def get_score(scoring: Any, loss: Loss) -> RowScore | None:
    """What was asked for by name, or as it is; None is the loss.

    Parameters
    ----------
    scoring : str or RowScore
    loss : Loss
        Of the model that is scored.

    Raises
    ------
    ValueError
        There is none of that name for such a model.
    """
    if callable(scoring) and not isinstance(scoring, RowScore):
        raise ValueError(
            "scoring is a function: rows lie on many workers, so wrap one that gives a number a "
            f"row, dps.metrics.RowScore({getattr(scoring, '__name__', 'function')})"
        )
    score: RowScore | str = scoring
    if isinstance(score, str):
        if score == "loss":
            return None
        known = _SCORES[loss.task]
        if score not in known:
            raise ValueError(
                f"The 'scoring' parameter must be a RowScore or a str among "
                f"{['loss', *known]}, which are sums over rows. Got {scoring!r} instead."
            )
        score = known[score]
    if score.response_method == "predict_proba" and not loss.has_probabilities:
        raise ValueError(f"scoring={scoring!r} asks for probabilities, which {loss!r} has not")
    return score


def about(score: RowScore, centre: tuple[float, ...], targets: TargetEncoding) -> RowScore:
    """The score, with the middle of the targets, or how many labels there are, if it needs that.

    Raises
    ------
    ValueError
        There are more outputs, or labels, than have room in a rank's report; it is of others.
    """
    if isinstance(score, _Brier) and targets.multilabel:
        raise ValueError("scoring='neg_brier_score' is of rows of one label: use 'neg_log_loss'")
    if isinstance(score, _OfLabels):
        n_labels = 0 if targets.classes is None else len(targets.classes)
        if score.average == "binary" and (targets.multilabel or n_labels != 2):
            raise ValueError(
                f"scoring={score.what!r} is of two classes: use '{score.what}_macro', "
                f"'{score.what}_micro' or '{score.what}_weighted'"
            )
        if n_labels > MOST_SUMS // 3:
            raise ValueError(
                f"scoring by labels is of {MOST_SUMS // 3} of them at the most, y has {n_labels}: "
                "use 'accuracy' or 'neg_log_loss'"
            )
        return replace(score, n_labels=n_labels)
    if not isinstance(score, _R2):
        return score
    if len(centre) > MOST_SUMS // 3:
        raise ValueError(
            f"scoring='r2' is of {MOST_SUMS // 3} outputs at the most, y has {len(centre)}: use "
            "'neg_mean_squared_error'"
        )
    return replace(score, centre=centre)
