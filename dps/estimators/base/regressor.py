"""The base of regressors: predictions, a score, training epoch by epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from dps.estimators.base.estimator import DistributedEstimator
from dps.estimators.base.habits import refuse_unknown
from dps.estimators.predict.predict import Finish
from dps.losses import Loss
from dps.losses.names import get_loss

if TYPE_CHECKING:
    from dps._typing import MatrixLike, RegressionLoss, VectorLike


def _first_of(mean: Any, raw: NDArray[np.floating]) -> NDArray[np.floating]:
    return mean(raw)[:, 0]


@dataclass(eq=False, repr=False, kw_only=True)
class AnyRegressor(RegressorMixin, DistributedEstimator):
    """An estimator of numbers with any loss."""

    _classification: ClassVar[bool] = False

    def partial_fit(
        self, X: MatrixLike, y: VectorLike, sample_weight: VectorLike | None = None
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
        """
        self._validate_params()
        first = not hasattr(self, "_carry")
        start = None if first else self._carry
        return self._run(X, y, sample_weight, start=start, partial=True, reset=first)

    def predict(self, X: MatrixLike, **unknown: object) -> Any:
        """Predicted values, (n,), or (n, n_outputs) if y had several columns.

        Lazy for Dask input.
        """
        refuse_unknown(f"{type(self).__name__}.predict()", unknown, ["X"], {})
        check_is_fitted(self)
        n_outputs = self._several()
        if n_outputs is None:
            return self._apply(X, partial(_first_of, self._mean()))
        return self._apply(X, self._mean(), range(n_outputs))

    def _mean(self) -> Finish:
        """Return the map from raw outputs to predictions."""
        return self._loss().mean

    def _several(self) -> int | None:
        """Number of columns of y; None for a vector or a single column."""
        n_outputs: int = getattr(self._model, "n_outputs", 1)
        return None if n_outputs == 1 else n_outputs

    def score(self, X: MatrixLike, y: VectorLike, sample_weight: VectorLike | None = None) -> float:
        """Coefficient of determination; for several outputs the mean.

        Computed where the data lies.
        """
        return self._scored("r2_score", X, y, sample_weight)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


@dataclass(eq=False, repr=False, kw_only=True)
class Regressor(AnyRegressor):
    """An estimator of numbers by one of dps's losses."""

    loss: RegressionLoss = field(default="squared_error", kw_only=False)

    _parameter_constraints: ClassVar[dict[str, Any]] = {"loss": [str, Loss]}

    def _loss(self) -> Loss:
        return get_loss(self.loss, "regression")
