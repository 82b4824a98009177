"""Scores of validation rows, from what each rank reports about its rows."""

from __future__ import annotations

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dps.data.feed.targets import TargetEncoding, positive_code
from dps.scores import formulas

_Self = TypeVar("_Self", bound="Score")


@dataclass(frozen=True)
class Score(ABC):
    """A score of validation rows; higher is better."""

    @property
    def _needs_probabilities(self) -> bool:
        """True if only a loss that has probabilities can be scored."""
        return False

    def _about(self: _Self, targets: TargetEncoding, n_outputs: int) -> _Self:
        """Return the score with what it needs to know about the targets.

        Parameters
        ----------
        targets : TargetEncoding
        n_outputs : int
            Columns of raw outputs.

        Raises
        ------
        ValueError
            The score does not fit the targets.
        """
        return self

    @abstractmethod
    def _sums(
        self, targets: TargetEncoding, y: Any, raw: np.ndarray, weight: Any
    ) -> NDArray[np.float64]:
        """Sums of some rows, (k,), from encoded targets, raw outputs and weights."""

    def _joined(self, parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Join reports on parts of the rows; further numbers may follow a report."""
        return functools.reduce(operator.add, parts, np.zeros(1))

    def _width(self, rows: int) -> int:
        """Largest number of values in a report on `rows` rows."""
        return 1

    def _value(self, sums: NDArray[np.float64], weight: float) -> float:
        """Return the score, from the report of all rows and the sum of their weights."""
        return float(sums[0] / weight)


@dataclass(frozen=True)
class _MeanScore(Score):
    """A score whose reports are sums over rows."""

    @abstractmethod
    def _of_rows(self, targets: TargetEncoding, y: np.ndarray, raw: np.ndarray) -> Any:
        """Return values to sum, (n,) or (n, k)."""

    def _sums(
        self, targets: TargetEncoding, y: Any, raw: np.ndarray, weight: Any
    ) -> NDArray[np.float64]:
        """Return weighted sums, (k,)."""
        rows = np.asarray(self._of_rows(targets, y, raw), np.float64)
        return np.atleast_1d(weight @ rows)


@dataclass(frozen=True)
class RowScore(_MeanScore):
    """The weighted mean over rows of a function of targets and predictions.

    Parameters
    ----------
    function : callable
        ``function(y_true, y_pred)`` returns an array of shape (n,), one number per row; higher is
        better, so return minus an error. It gets some thousand rows per call.
    response_method : {"predict", "predict_proba", "decision_function"}, default="predict"
        What `y_pred` is: labels, or the numbers of a regression; probabilities, one column per
        class in the order of ``classes_``; or raw outputs.

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

    function: Callable[[np.ndarray, np.ndarray], Any]
    response_method: str = "predict"

    def __post_init__(self) -> None:
        methods = ("predict", "predict_proba", "decision_function")
        if not callable(self.function):
            raise TypeError(f"function of a RowScore must be callable, got {self.function!r}")
        if self.response_method not in methods:
            raise ValueError(
                f"response_method must be one of {methods}, got {self.response_method!r}"
            )

    @property
    def _needs_probabilities(self) -> bool:
        """True if the score needs probabilities."""
        return self.response_method == "predict_proba"

    def _of_rows(self, targets: TargetEncoding, y: np.ndarray, raw: np.ndarray) -> Any:
        """Return the numbers of the function."""
        scored = np.asarray(self.function(*seen(self.response_method, targets, y, raw)))
        if scored.shape != (len(raw),):
            raise ValueError(
                f"the function of a RowScore must return a number for each of {len(raw)} rows, got "
                f"shape {scored.shape}"
            )
        return scored


def seen(method: str, targets: TargetEncoding, y: np.ndarray, raw: np.ndarray) -> Any:
    """Return targets and predictions in the user's form.

    method: {"predict", "predict_proba", "decision_function"}.
    y: (n,) or (n, k) array, encoded.
    raw: (n, n_outputs) array.
    """
    loss, classes = targets.loss, targets.classes
    if targets.units is not None:
        y, raw = targets.units.targets(y), targets.units.raw(raw)
    if method == "decision_function":
        predicted = raw[:, 0] if raw.shape[1] == 1 else raw
    elif classes is None:
        predicted = loss.mean(raw).astype(np.float64)
        predicted, y = predicted[:, 0] if y.ndim == 1 else predicted, y.astype(np.float64)
    elif method == "predict_proba":
        predicted = loss.probabilities(raw)
    else:
        predicted = raw > 0 if targets.multilabel else classes[_codes(raw)]
    if classes is None or targets.multilabel:
        return (y if classes is None else targets.codes(y)), predicted
    return classes[targets.codes(y)], predicted


def _codes(raw: np.ndarray) -> NDArray[np.intp]:
    """Return the codes of the predicted classes."""
    codes: NDArray[np.intp]
    codes = (raw[:, 0] > 0).astype(np.intp) if raw.shape[1] == 1 else raw.argmax(axis=1)
    return codes


@dataclass(frozen=True)
class _Probabilities(_MeanScore):
    """A mean over rows of probabilities."""

    @property
    def _needs_probabilities(self) -> bool:
        """True."""
        return True


@dataclass(frozen=True)
class _LogLoss(_Probabilities):
    """Minus the log loss."""

    def _of_rows(self, targets: TargetEncoding, y: np.ndarray, raw: np.ndarray) -> Any:
        chances, codes = targets.loss.probabilities(raw), targets.codes(y)
        if targets.multilabel:
            return -formulas.negative_logs(np.where(codes, chances, 1 - chances)).sum(axis=1)
        true = np.take_along_axis(chances, codes[:, None], axis=1)[:, 0]
        return -formulas.negative_logs(true)


@dataclass(frozen=True)
class _Brier(_Probabilities):
    """The negative Brier score; half of it for two classes."""

    def _about(self, targets: TargetEncoding, n_outputs: int) -> _Brier:
        """Refuse several labels per row."""
        if targets.multilabel:
            raise ValueError(
                "scoring='neg_brier_score' needs one label a row, and y has several: "
                "use 'neg_log_loss'"
            )
        return self

    def _of_rows(self, targets: TargetEncoding, y: np.ndarray, raw: np.ndarray) -> Any:
        chances = targets.loss.probabilities(raw).astype(np.float64)
        true = targets.codes(y)[:, None] == np.arange(chances.shape[1])
        distance = ((chances - true) ** 2).sum(axis=1)
        return -distance / 2 if chances.shape[1] == 2 else -distance


@dataclass(frozen=True)
class _LabelScore(_MeanScore):
    """Precision, recall or F1, from the weight of rows by label, true and predicted."""

    what: str = "f1"  # {"precision", "recall", "f1"}
    # {"binary", "macro", "micro", "weighted", "balanced"} "macro" is the mean over labels that
    # occur or are predicted, "balanced" over labels that occur.
    average: str = "macro"
    n_labels: int = 0
    positive: int = 1  # the code of the positive class for "binary"

    def _about(self, targets: TargetEncoding, n_outputs: int) -> _LabelScore:
        """Return the score for a number of labels."""
        n_labels = 0 if targets.classes is None else len(targets.classes)
        if self.average == "binary" and (targets.multilabel or n_labels != 2):
            raise ValueError(
                f"scoring={self.what!r} needs two classes: use '{self.what}_macro', "
                f"'{self.what}_micro' or '{self.what}_weighted'"
            )
        positive = positive_code(targets.classes) if self.average == "binary" else 1
        return replace(self, n_labels=n_labels, positive=positive)

    def _width(self, rows: int) -> int:
        """Return three per label."""
        return 3 * self.n_labels

    def _of_rows(self, targets: TargetEncoding, y: np.ndarray, raw: np.ndarray) -> Any:
        true, predicted = targets.codes(y) > 0, raw > 0
        if not targets.multilabel:
            labels = np.arange(self.n_labels)
            true, predicted = (of[:, None] == labels for of in (targets.codes(y), _codes(raw)))
        return np.hstack([true & predicted, predicted, true])

    def _value(self, sums: NDArray[np.float64], weight: float) -> float:
        both, predicted, true = sums[: 3 * self.n_labels].reshape(3, -1)
        if self.average == "binary":
            both, predicted, true = (of[[self.positive]] for of in (both, predicted, true))
        elif self.average == "micro":
            both, predicted, true = (np.array([of.sum()]) for of in (both, predicted, true))
        below = {"precision": predicted, "recall": true, "f1": (predicted + true) / 2}[self.what]
        each = np.divide(both, below, out=np.zeros_like(both), where=below > 0)
        there = true > 0 if self.average == "balanced" else true + predicted > 0
        weights = true[there] if self.average == "weighted" else None
        return float(np.average(each[there], weights=weights)) if there.any() else 0.0


@dataclass(frozen=True)
class _R2(Score):
    """The coefficient of determination; for several outputs their mean."""

    n_outputs: int = 1

    def _about(self, targets: TargetEncoding, n_outputs: int) -> _R2:
        """Return the score for a number of outputs."""
        return replace(self, n_outputs=n_outputs)

    def _width(self, rows: int) -> int:
        """Return the weight, and three per output."""
        return 1 + 3 * self.n_outputs

    def _sums(
        self, targets: TargetEncoding, y: Any, raw: np.ndarray, weight: Any
    ) -> NDArray[np.float64]:
        """Return moments."""
        true, predicted = seen("predict", targets, y, raw)
        return formulas.moments(true, predicted, weight)

    def _joined(self, parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        return formulas.joined([np.zeros(self._width(0)), *parts])

    def _value(self, sums: NDArray[np.float64], weight: float) -> float:
        return float(formulas.r2(sums).mean())


def _squared(y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
    return -formulas.squared(y_true, y_pred).mean(axis=1)


def _absolute(y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
    return -formulas.absolute(y_true, y_pred).mean(axis=1)


#: Scores that are sums over rows, by task and scikit-learn's names.
SUMS: dict[str, dict[str, Score]] = {
    "classification": {
        "accuracy": RowScore(formulas.equal),
        "neg_log_loss": _LogLoss(),
        "neg_brier_score": _Brier(),
        "balanced_accuracy": _LabelScore("recall", "balanced"),
        **{
            what + ("" if average == "binary" else f"_{average}"): _LabelScore(what, average)
            for what in ("f1", "precision", "recall")
            for average in ("binary", "macro", "micro", "weighted")
        },
    },
    "regression": {
        "r2": _R2(),
        "neg_mean_squared_error": RowScore(_squared),
        "neg_mean_absolute_error": RowScore(_absolute),
    },
}
