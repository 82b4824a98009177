"""The base of classifiers: labels, probabilities, a score, training epoch by epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dps.cluster.choice import client_of
from dps.data.collections.alignment import in_memory
from dps.data.collections.partitions import is_dask
from dps.data.feed.targets import class_weights
from dps.estimators.base.estimator import DistributedEstimator
from dps.estimators.base.habits import refuse_unknown
from dps.estimators.predict.predict import Finish
from dps.losses import Loss
from dps.losses.classification import MarginLoss, Multilabel
from dps.losses.names import get_loss

if TYPE_CHECKING:
    from dps._typing import ClassificationLoss, MatrixLike, VectorLike
    from dps.data.survey.rows import DataSummary


def _margin(raw: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the margin of the second of two classes."""
    return raw[:, 0] if raw.shape[1] == 1 else raw[:, 1] - raw[:, 0]


def _as_is(raw: NDArray[np.floating]) -> NDArray[np.floating]:
    return raw


def _logarithms(of: Any, raw: NDArray[np.floating]) -> NDArray[np.floating]:
    return np.log(of(raw))


def _indicators(raw: NDArray[np.floating]) -> np.ndarray:
    return (raw > 0).astype(np.int64)


class _Labels:
    """Converts raw outputs to labels."""

    def __init__(self, classes: np.ndarray) -> None:
        self.classes = classes

    def __call__(self, raw: NDArray[np.floating]) -> np.ndarray:
        codes = (raw[:, 0] > 0).astype(np.intp) if raw.shape[1] == 1 else raw.argmax(axis=1)
        return self.classes[codes]


def _has_probabilities(estimator: AnyClassifier) -> bool:
    loss = estimator._loss()
    if loss.has_probabilities:
        return True
    raise AttributeError(
        f"probability estimates are not available for loss={loss.name!r}; "
        "use 'log_loss' or 'modified_huber'"
    )


@dataclass(eq=False, repr=False, kw_only=True)
class AnyClassifier(ClassifierMixin, DistributedEstimator):
    """An estimator of labels with any loss."""

    class_weight: Mapping[Any, float] | Literal["balanced"] | None = None

    _classification: ClassVar[bool] = True
    _parameter_constraints: ClassVar[dict[str, Any]] = {"class_weight": [dict, str, None]}

    def partial_fit(
        self,
        X: MatrixLike,
        y: VectorLike,
        classes: Any = None,
        sample_weight: VectorLike | None = None,
    ) -> Self:
        """Train one epoch, continuing from parameters and optimizer state.

        It takes stochastic steps, even after a `fit` by L-BFGS. The rows of the first call decide
        how features are scaled. Other parameters that are "auto" follow from the rows of this call.
        `alpha` follows from the rows of the last `fit` and of all calls since, and keeps the
        multiple that this `fit` has found.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`.
        classes : array of shape (n_classes,), optional
            All labels that may occur; required in the first call.
        """
        self._validate_params()
        if isinstance(self.class_weight, str):
            raise ValueError(
                f"class_weight={self.class_weight!r} is not possible with partial_fit: give a "
                "dict of weights computed over all rows"
            )
        first = not hasattr(self, "_carry")
        if is_dask(classes):  # for example the lazy result of np.unique(y)
            with client_of(self.client) as client:
                (classes,) = in_memory(client, classes=classes)
        if first and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit.")
        known = np.unique(classes) if first else self.classes_
        if classes is not None and not np.array_equal(np.unique(classes), known):
            raise ValueError(
                f"`classes={classes!r}` is not the same as on last call to partial_fit, was: "
                f"{known!r}"
            )
        start = None if first else self._carry
        return self._run(X, y, sample_weight, start=start, partial=True, classes=known, reset=first)

    def decision_function(self, X: MatrixLike) -> Any:
        """Raw outputs: (n,) for two classes, else (n, n_classes). Lazy for Dask input."""
        check_is_fitted(self)
        if len(self.classes_) > 2 or self.multilabel_:
            return self._apply(X, _as_is, self.classes_)
        return self._apply(X, _margin)

    def predict(self, X: MatrixLike, **unknown: object) -> Any:
        """Labels, (n,); for a y with several columns 0 and 1 in each. Lazy for Dask input."""
        refuse_unknown(f"{type(self).__name__}.predict()", unknown, ["X"])
        check_is_fitted(self)
        if self.multilabel_:
            return self._apply(X, _indicators, self.classes_)
        return self._apply(X, _Labels(self.classes_))

    @available_if(_has_probabilities)
    def predict_proba(self, X: MatrixLike) -> Any:
        """Probabilities of the classes, (n, n_classes). Lazy for Dask input."""
        check_is_fitted(self)
        return self._apply(X, self._probabilities(), self.classes_)

    @available_if(_has_probabilities)
    def predict_log_proba(self, X: MatrixLike) -> Any:
        """Logarithms of the probabilities. Lazy for Dask input."""
        check_is_fitted(self)
        return self._apply(X, partial(_logarithms, self._probabilities()), self.classes_)

    def _probabilities(self) -> Finish:
        """Return the map from raw outputs to probabilities of the classes."""
        return self._fitted_loss().probabilities

    def score(self, X: MatrixLike, y: VectorLike, sample_weight: VectorLike | None = None) -> float:
        """Share of rows whose labels are all predicted; computed where the data lies."""
        return self._scored("accuracy_score", X, y, sample_weight)

    def _fitted_loss(self) -> Loss:
        """Return the loss for the fitted labels."""
        loss = self._loss()
        if self.multilabel_ and isinstance(loss, MarginLoss):
            return Multilabel(loss)
        return loss.for_classes(len(self.classes_))

    def _class_factors(self, summary: DataSummary, classes: np.ndarray) -> tuple[float, ...] | None:
        """Return the factor of each class."""
        weights = np.zeros(len(classes))
        weights[np.searchsorted(classes, summary.labels.classes)] = summary.labels.weights
        return class_weights(self.class_weight, classes, weights)


@dataclass(eq=False, repr=False, kw_only=True)
class Classifier(AnyClassifier):
    """An estimator of labels by one of dps's losses."""

    loss: ClassificationLoss = field(default="log_loss", kw_only=False)

    _parameter_constraints: ClassVar[dict[str, Any]] = {"loss": [str, Loss]}

    def _loss(self) -> Loss:
        return get_loss(self.loss, "classification")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags
