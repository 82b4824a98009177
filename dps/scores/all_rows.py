"""Scores of scikit-learn that need all validation rows in one place.

Each rank reports its rows, and the rank that closes an epoch calls the scorer on all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import get_scorer, get_scorer_names
from sklearn.utils.metaestimators import available_if

from dps._warned import warned
from dps.data.feed.targets import TargetEncoding
from dps.losses import Loss
from dps.scores.validation import SUMS, Score, seen

_Scorer = type(get_scorer("accuracy"))


@dataclass(frozen=True)
class _AllRowsScore(Score):
    """A scorer's value for all validation rows.

    A report has the number of rows, and for each row raw outputs, encoded y and weight.
    """

    scorer: Any
    name: str
    # True for scikit-learn's own scorers, which score the class 1, or the second of other classes.
    is_known: bool
    targets: TargetEncoding | None = None
    n_raw: int = 1  # columns of a row
    n_y: int = 1

    def _about(self, targets: TargetEncoding, n_outputs: int) -> _AllRowsScore:
        """Score some made-up rows, so that an impossible score is an error before the fit."""
        if targets.classes is None:
            y = np.tile([[1.5], [2.5]], n_outputs)
        else:
            n_classes = len(targets.classes)
            named = _looks_for_one(self.scorer) and 1 in targets.classes.tolist()
            if self.is_known and n_classes == 2 and not named:
                targets = replace(targets, classes=np.arange(2))
            codes = np.eye(n_classes) if targets.multilabel else np.arange(float(n_classes))
            y = np.concatenate([targets.loss.targets(codes)] * 2).reshape(2 * n_classes, -1)
        score = replace(self, targets=targets, n_raw=n_outputs, n_y=y.shape[1])
        try:
            with warned(), suppress(Warning):  # warnings may be errors in this process
                raw, weight = np.ones((len(y), n_outputs)), np.ones(len(y))
                score._value(score._sums(targets, y, raw, weight), 1.0)
        except Exception as error:
            raise ValueError(f"scoring={self.name!r} is not possible here: {error}") from error
        return score

    def _sums(
        self, targets: TargetEncoding, y: Any, raw: np.ndarray, weight: Any
    ) -> NDArray[np.float64]:
        """Return the rows."""
        rows = np.column_stack([raw, y, weight])
        return np.concatenate([[len(rows)], rows.ravel()])

    def _joined(self, parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return all rows in the order of the parts."""
        counts = [int(part[0]) for part in parts]
        each = self.n_raw + self.n_y + 1
        rows = [part[1 : 1 + n * each] for part, n in zip(parts, counts, strict=True)]
        return np.concatenate([[sum(counts)], *rows])

    def _width(self, rows: int) -> int:
        """One count, and the raw outputs, targets and weight of each row."""
        return 1 + rows * (self.n_raw + self.n_y + 1)

    def _value(self, sums: NDArray[np.float64], weight: float) -> float:
        """Return the scorer's value; equal weights are left out."""
        assert self.targets is not None
        n = int(sums[0])
        rows = sums[1 : self._width(n)].reshape(n, -1)
        raw, y, weights = rows[:, : self.n_raw], rows[:, self.n_raw : -1], rows[:, -1]
        y = y[:, 0] if self.n_y == 1 else y
        counting = weights > 0
        if not counting.all():  # scorers must not count rows without weight
            raw, y, weights = raw[counting], y[counting], weights[counting]
        kind = _Regressor if self.targets.classes is None else _Classifier
        true, _ = seen("predict", self.targets, y, raw)
        options = {} if np.all(weights == weights[:1]) else {"sample_weight": weights}
        return float(self.scorer(kind(self.targets, y), raw, true, **options))


def _looks_for_one(scorer: Any) -> bool:
    """True if a scorer scores the class 1, as F1 does."""
    parameter = signature(scorer._score_func).parameters.get("pos_label")
    return parameter is not None and parameter.default == 1


class _Outputs(BaseEstimator):  # type: ignore[misc]
    """A model for scorers whose X are the raw outputs of rows."""

    def __init__(self, targets: TargetEncoding, y: np.ndarray) -> None:
        self.targets = targets
        self.y = y

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self._seen("predict", X)

    def _seen(self, method: str, X: np.ndarray) -> np.ndarray:
        return seen(method, self.targets, self.y, X)[1]

    def __sklearn_is_fitted__(self) -> bool:
        return True


class _Classifier(ClassifierMixin, _Outputs):  # type: ignore[misc]
    @property
    def classes_(self) -> Any:
        return self.targets.classes

    def decision_function(self, X: np.ndarray) -> np.ndarray:
        return self._seen("decision_function", X)

    @available_if(lambda self: self.targets.loss.has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        return self._seen("predict_proba", X)


class _Regressor(RegressorMixin, _Outputs):  # type: ignore[misc]
    pass


def get_score(scoring: Any, loss: Loss) -> Score:
    """Return the score with a name, or as given.

    Raises ValueError: there is none of that name for such a model.
    """
    score: Score = scoring
    if isinstance(scoring, _Scorer):
        score = _AllRowsScore(scoring, str(scoring), False)
    elif isinstance(scoring, str):
        known = SUMS[loss.task]
        others = set(get_scorer_names()).difference(*SUMS.values())
        if scoring in others:
            score = _AllRowsScore(get_scorer(scoring), scoring, True)
        elif scoring in known:
            score = known[scoring]
        else:
            raise ValueError(
                f"The 'scoring' parameter must be a RowScore, a scorer of scikit-learn or a str "
                f"among {['loss', *known]} and the names of scikit-learn's other scorers of "
                f"{loss.task}. Got {scoring!r} instead."
            )
    elif not isinstance(scoring, Score):
        name = getattr(scoring, "__name__", "function")
        raise ValueError(
            "scoring is a function: wrap one that gives a number a row, "
            f"dps.metrics.RowScore({name}), or one of all rows, sklearn.metrics.make_scorer({name})"
        )
    if score._needs_probabilities and not loss.has_probabilities:
        raise ValueError(f"scoring={scoring!r} asks for probabilities, which {loss!r} has not")
    return score
