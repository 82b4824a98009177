"""Linear classification and regression."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import check_is_fitted

from dps.estimators.base import DistributedEstimator
from dps.estimators.docs import ATTRIBUTES, PLACES, ROWS, documented
from dps.estimators.encoding import coefficient_names
from dps.estimators.linear_family import LinearFamily
from dps.estimators.plain import plain_linear
from dps.estimators.tasks import Classifier, Regressor
from dps.optimizers import Optimizer
from dps.optimizers.schedules import Schedule
from dps.training.state import TrainState

__all__ = ["LinearClassifier", "LinearRegressor"]

_LINEAR = """
penalty : {"l2", "l1", "elasticnet"} or None, default="l2"
    L-BFGS ends with the zeros of L1; stochastic steps leave some of them small.
alpha : float, "auto" or "cv", default="auto"
    Strength of the penalty; "auto" is 1 / (sum of sample weights), or 1 / rows. "cv" chooses it
    by the loss on a fifth of the rows, which is held out, or on `X_val`: by powers of ten, then
    by the root beside the best. Of more than 2^21 stored values of X some rows are looked at.
standardize : bool, default=True
    Whether numbers count as those of deviation one, as in glmnet and Spark: in the penalty, and
    in steps of SGD, momentum, Adagrad and Adam. Numbers are the columns of dense arrays and the
    numeric columns of dataframes; categories, and columns of sparse matrices, count as they
    are. `coef_` is of the features as they are. Deviations are of all rows (of partitions with
    more than 2^19 stored values of a sample), with `sample_weight` and without `class_weight`;
    `partial_fit` keeps those of its first call.
l1_ratio : float, default=0.15
    Share of L1 in the elastic net.
fit_intercept : bool, default=True
max_iter : int, default=1000
    Epochs at the most.
tol : float or None, default=1e-4
    An epoch of stochastic steps that does not lower the loss by this much counts as
    bad. L-BFGS ends when a step promises less than a hundredth of it, or when
    `n_iter_no_change` passes in a row each gain less than a tenth; in a regression
    times the squared derivative of the loss at a standard deviation of y, and of the
    objective where that is less. With L1, or where a loss has a kink, it is stricter.
n_iter_no_change : int, default=5
    Bad epochs in a row that end the fit.
early_stopping : bool, default=False
    Whether the loss of rows that are held out, or given to `fit` as `X_val`, decides when to
    stop, and which epoch is kept.
warm_start : bool, default=False
    Whether `fit` starts from the coefficients that are there.
average : bool or int, default=False
    Whether the parameters are averaged over updates; a number starts when so many
    rows have been seen.
optimizer : str or Optimizer, default="auto"
    One of "auto", "lbfgs", "sgd", "momentum", "adagrad", "scaled_adagrad", "adam" and "adamw".
    "lbfgs" takes its steps from the gradient of all rows, in coordinates in which
    features vary alike; features need not be scaled. "auto" is L-BFGS, unless something
    was asked for that only stochastic steps have: `learning_rate`, `batch_size`,
    `average`, `early_stopping`, ``tol=None``. Then it is scaled Adagrad, for which
    features need not be scaled, either; for the others scale sparse ones. In async it is scaled
    Adagrad until that gains little, and then L-BFGS, for whose passes replicas wait for
    each other. Where sparse rows say little of each column (text) and `alpha` is small,
    it is Adagrad in every mode.
learning_rate : float, Schedule, {"constant", "invscaling", "step", "cosine"} or "auto", \
default="auto"
"""
_shared = documented(linear=_LINEAR, rows=ROWS, places=PLACES, attributes=ATTRIBUTES)


@dataclass(frozen=True, eq=False)
class _Raw:
    """``X @ coef + intercept``."""

    coef: NDArray[np.floating]  # (n_features, n_outputs)
    intercept: NDArray[np.floating]  # (n_outputs,)

    @property
    def n_features(self) -> int:
        return len(self.coef)

    @property
    def dtype(self) -> Any:
        return self.coef.dtype

    def __call__(self, X: Any) -> NDArray[np.floating]:
        raw: NDArray[np.floating] = safe_sparse_dot(X, self.coef, dense_output=True)
        return raw + self.intercept


@dataclass(eq=False, repr=False, kw_only=True)
class _Linear(DistributedEstimator):
    """What the two linear estimators share."""

    penalty: Any = "l2"
    alpha: Any = "auto"
    standardize: bool = True
    l1_ratio: float = 0.15
    fit_intercept: bool = True
    average: bool | int = False
    optimizer: Any = "auto"
    learning_rate: Any = "auto"

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "penalty": [StrOptions({"l1", "l2", "elasticnet"}), None],
        "alpha": [Interval(Real, 0, None, closed="left"), StrOptions({"auto", "cv"})],
        "standardize": ["boolean"],
        "l1_ratio": [Interval(Real, 0, 1, closed="both")],
        "fit_intercept": ["boolean"],
        "average": ["boolean", Interval(Integral, 1, None, closed="left")],
        "optimizer": [str, Optimizer],
        "learning_rate": [Interval(Real, 0, None, closed="neither"), str, Schedule],
    }

    def _family(self) -> LinearFamily:
        return LinearFamily(self)

    def _raw(self) -> _Raw:
        coef = np.ascontiguousarray(np.atleast_2d(self.coef_).T)
        return _Raw(coef, np.atleast_1d(self.intercept_))

    def _warm(self) -> TrainState | None:
        if not hasattr(self, "coef_"):
            return None
        parts = [np.ravel(np.atleast_2d(self.coef_).T)]
        if self.fit_intercept:
            parts.append(np.ravel(self.intercept_))
        return TrainState(np.concatenate(parts).astype(self.coef_.dtype))

    def to_sklearn(self) -> Any:
        """A fitted estimator of scikit-learn that predicts the same, to rounding.

        ``LogisticRegression``, or ``SGDClassifier`` for the other losses of labels; ``Ridge``,
        ``QuantileRegressor``, ``PoissonRegressor``, ``GammaRegressor``, or ``SGDRegressor``, for
        several targets in a ``MultiOutputRegressor``. It is made to predict: of its parameters
        only the loss and `fit_intercept` are those of this estimator. It knows neither dps nor
        Dask, and skl2onnx makes ONNX of it. Where dataframes are encoded, it is a ``Pipeline`` of
        a ``ColumnTransformer`` and such an estimator; of `encoder_`, which is of dps, where there
        are buckets, lists, interactions or parts of dates.

        Returns
        -------
        estimator of scikit-learn

        Raises
        ------
        NotFittedError
            There is nothing trained yet.
        ValueError
            scikit-learn has no such loss.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from dps import LinearClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> LinearClassifier().fit(X, y).to_sklearn().predict(X[:2])
        array([0, 0])
        """
        check_is_fitted(self)
        return plain_linear(self)

    def coefficients(self) -> Any:
        """The coefficients by the names of their columns.

        Returns
        -------
        pandas.Series, or DataFrame with a column a class or an output where there are several
            Of a dataframe that was encoded, the names are those of the encoded columns, such as
            ``origin_JFK``.

        Examples
        --------
        >>> import pandas as pd
        >>> from dps import LinearRegressor
        >>> frame = pd.DataFrame({"size": [1.0, 2.0, 3.0, 4.0], "kind": ["a", "b", "a", "b"]})
        >>> LinearRegressor(alpha=0, tol=1e-9).fit(frame, [1, 12, 3, 14]).coefficients().round(2)
        size      1.0
        kind_a   -5.0
        kind_b    5.0
        Name: coefficient, dtype: float64
        """
        check_is_fitted(self)
        import pandas as pd

        names, coef = coefficient_names(self), np.atleast_2d(self.coef_)
        if len(coef) == 1:
            return pd.Series(coef[0], index=names, name="coefficient")
        columns = self.classes_ if self._classification else range(len(coef))
        return pd.DataFrame(coef.T, index=names, columns=columns)


@_shared
@dataclass(eq=False, repr=False, kw_only=True)
class LinearClassifier(_Linear, Classifier):
    """A linear classifier, trained where its data lies.

    Minimises ``mean(loss) + alpha * penalty(coef)``, the objective of scikit-learn's SGD
    estimators; the intercept is not penalised. With the default ``alpha`` it is
    ``LogisticRegression(C=1)`` behind a ``StandardScaler`` of the numbers. Several classes share
    one softmax for the log loss and are trained one against the rest for the other losses.

    Parameters
    ----------
    loss : {"log_loss", "hinge", "squared_hinge", "modified_huber"} or Loss, default="log_loss"
    class_weight : dict, "balanced" or None, default=None
    <linear>
    <rows>
    <places>

    Attributes
    ----------
    coef_ : array of shape (1, n_features) or (n_classes, n_features)
    intercept_ : array of shape (1,) or (n_classes,)
    classes_ : array of shape (n_classes,)
        Of a y of several columns, their numbers.
    multilabel_ : bool
        Whether y had several columns, one a label.
    alpha_ : float
        The strength of the penalty.
    alpha_path_ : array of shape (n, 2)
        With ``alpha="cv"``: strengths that were tried, and the loss on held-out rows of each.
    <attributes>

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dps import LinearClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> bool(LinearClassifier(random_state=0).fit(X, y).score(X, y) > 0.95)
    True
    """


@_shared
@dataclass(eq=False, repr=False, kw_only=True)
class LinearRegressor(_Linear, Regressor):
    """A linear regression, trained where its data lies.

    Minimises ``mean(loss) + alpha * penalty(coef)``, the objective of scikit-learn's SGD
    estimators; the intercept is not penalised. With the default ``alpha`` and loss it is
    ``Ridge(alpha=1)`` behind a ``StandardScaler`` of the numbers.

    Parameters
    ----------
    loss : str or Loss, default="squared_error"
        "squared_error", "huber", "epsilon_insensitive", "quantile" (the median;
        ``dps.losses.Quantile(0.9)`` another), or "poisson" (counts) and "gamma" (amounts), whose
        mean is the exponential of the linear function.
    <linear>
    <rows>
    <places>

    Attributes
    ----------
    coef_ : array of shape (n_features,), or (n_outputs, n_features) if y has several columns
    intercept_ : array of shape (1,) or (n_outputs,)
    alpha_ : float
        The strength of the penalty.
    alpha_path_ : array of shape (n, 2)
        With ``alpha="cv"``: strengths that were tried, and the loss on held-out rows of each.
    <attributes>

    Examples
    --------
    >>> import numpy as np
    >>> from dps import LinearRegressor
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> model = LinearRegressor(random_state=0).fit(X, X @ [1.0, 2.0, 0.0])
    >>> bool(model.score(X, X @ [1.0, 2.0, 0.0]) > 0.95)
    True
    """

    def _several(self) -> int | None:
        return len(self.coef_) if self.coef_.ndim == 2 else None
