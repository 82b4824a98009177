"""Linear classification and regression.

Unused columns of wide local data are left out, the intercept is trained at a centre of the
features, numbers are standardized, steps are in units of the features, and "auto" chooses between
L-BFGS and stochastic steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from dps.estimators.auto.least_squares import solved
from dps.estimators.auto.linear import (
    choose_coordinates,
    choose_method,
    choose_optimizer,
    choose_penalty,
    choose_replicas,
    choose_schedule,
    choose_steps,
    first_state,
    is_exact,
    uses_minibatches,
)
from dps.estimators.auto.passes import refuse_passes
from dps.estimators.auto.steps import needs_scales
from dps.estimators.base.classifier import Classifier
from dps.estimators.base.declare import estimator
from dps.estimators.base.estimator import DistributedEstimator
from dps.estimators.base.parameters import LINEAR
from dps.estimators.base.regressor import Regressor
from dps.estimators.fit.encoding import coefficient_names, index_of
from dps.estimators.fit.survey import Request, Survey
from dps.estimators.predict.predict import LinearRaw
from dps.models.linear import LinearModel
from dps.optimizers import Constant, Optimizer
from dps.optimizers.schedules import Schedule
from dps.training.state import TrainState

if TYPE_CHECKING:
    import pandas as pd

    from dps._typing import Auto, OptimizerLike, RateLike
    from dps.data.survey.rows import Inspection
    from dps.training.job import Job
    from dps.training.state import Snapshot


@dataclass(eq=False, repr=False, kw_only=True)
class _Linear(DistributedEstimator):
    """The common part of the two linear estimators."""

    penalty: Literal["l1", "l2", "elasticnet"] | None = "l2"
    alpha: float | Literal["auto", "cv"] = "auto"
    standardize: bool | Auto = "auto"
    l1_ratio: float = 0.15
    fit_intercept: bool = True
    average: bool | int = False
    optimizer: OptimizerLike = "auto"
    learning_rate: RateLike = "auto"
    max_iter: int = 1000
    n_iter_no_change: int = 5

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "penalty": [StrOptions({"l1", "l2", "elasticnet"}), None],
        "alpha": [Interval(Real, 0, None, closed="left"), StrOptions({"auto", "cv"})],
        "standardize": ["boolean", StrOptions({"auto"})],
        "l1_ratio": [Interval(Real, 0, 1, closed="both")],
        "fit_intercept": ["boolean"],
        "average": ["boolean", Interval(Integral, 1, None, closed="left")],
        "optimizer": [str, Optimizer],
        "learning_rate": [Interval(Real, 0, None, closed="neither"), str, Schedule],
    }

    _encoder_parameters: ClassVar[dict[str, Any]] = {"min_frequency": "auto"}
    _saved: ClassVar[tuple[str, ...]] = (
        "coef_", "intercept_", "alpha_", "alpha_path_", "standardize_",
    )  # fmt: skip

    def _check(self, request: Request) -> None:
        """Check the parameters that L-BFGS ignores, and the schedule."""
        if request.partial and self.optimizer == "lbfgs":
            refuse_passes("partial_fit")
        streams = request.partial and not request.goes_on_from_fit
        if self.alpha == "cv" and (streams or self.penalty is None):
            one = "partial_fit sees a part of the rows" if streams else "penalty=None has none"
            raise ValueError(f"alpha='cv' chooses a penalty on held-out rows, and {one}")
        choose_optimizer(self, request.loss)
        choose_schedule(self, Constant(1.0))

    def _leaves_out_columns(self, request: Request) -> bool:
        """True, unless a mean or an earlier fit moves coefficients without gradients."""
        optimizer = choose_optimizer(self, request.loss)
        in_kernels = optimizer is None or optimizer.native is not None
        # A mean depends on its start, and only kernels are known to leave zeros alone.
        return request.start is None and not self.average and in_kernels

    def _inspection(self, request: Request) -> Inspection:
        """Request the variation of features if steps are in units of the features."""
        from dps.data.survey.rows import Inspection

        before = None if request.start is None else request.start.optimizer
        steps = uses_minibatches(self, request.loss, request.mode, request.tol)
        numbers = None
        if request.encoding is not None:
            numbers = request.encoding.encoder._layout.number_columns
            if request.columns is not None:
                kept = np.isin(request.columns.numbers, numbers)
                numbers = tuple(np.flatnonzero(kept).tolist())
        optimizer = choose_optimizer(self, request.loss)
        spread = steps and needs_scales(optimizer, bool(self.average), before)
        return Inspection(spread=spread, numbers=numbers)

    def _useful_logarithms(self, survey: Survey) -> NDArray[np.integer]:
        """Let held-out rows choose."""
        from dps.estimators.auto.logarithms import useful_logarithms

        return useful_logarithms(survey)

    def _plan(self, survey: Survey) -> Job:
        """Train by L-BFGS or by steps in units of the features; see `Trainable._plan`."""
        varying = np.empty(0, np.intp)
        if survey.start is not None:
            from dps.estimators.auto.constants import linear_goes_on

            survey.start, varying = linear_goes_on(survey.start, survey.summary)
        exact = is_exact(self, survey)
        alpha, standardize = choose_penalty(self, survey, exact)
        model = self._model_of(survey)
        method = choose_method(self, survey, alpha)
        optimizer, schedule = choose_steps(self, survey, method)
        model = model.of_features(*choose_coordinates(self, survey, model, method, standardize))
        job = survey.job(
            model,
            optimizer,
            schedule,
            params=self._initial(model, survey),
            state=first_state(self, survey, optimizer, model, method, varying),
            l1=method.l1,
            l2=method.l2,
            batch_size=method.batch_size,
            n_replicas=choose_replicas(self, survey, model, method),
            full_batch=method.full_batch,
            finish=method.finish,
        )
        return solved(survey, job) if exact else job

    def _model_of(self, survey: Survey) -> LinearModel:
        """Return the model of unscaled features; the last fit must agree with it."""
        start, summary = survey.start, survey.summary
        dtype = summary.dtype if start is None else start.params.dtype
        model = LinearModel(
            summary.n_features, survey.n_outputs, survey.targets.loss, self.fit_intercept, dtype
        )
        if start is not None:
            start.check(model)
        return model

    def _initial(self, model: LinearModel, survey: Survey) -> NDArray[np.floating]:
        if (start := survey.start) is not None:
            before = start.model
            same = model.centre is model.scale is None
            if before is not None:
                same = before.centre is model.centre and before.scale is model.scale
            if same:
                return start.params
            plain = start.params if before is None else before.plain(start.params)
            return model.from_plain(plain)
        params: NDArray[np.floating] = model.initial()
        if model.fit_intercept:
            first = (
                survey.first_raw()
                if self._classification
                else survey.loss.start(survey.summary.targets.mean)
            )
            model.layout.views(params)["intercept"][:] = first
        return params

    def _restore_columns(self, survey: Survey, job: Job, kept: Snapshot) -> tuple[Any, Snapshot]:
        """The model of all columns, and its parameters and state."""
        model, columns, values = job.model, survey.columns, kept.values
        if columns is None:
            return model, kept
        assert isinstance(model, LinearModel)
        wide = LinearModel(
            columns.total, model.n_outputs, model.loss, model.fit_intercept, model.dtype
        )
        centre, scale = (
            None if each is None else columns.spread(each, 1, np.full(columns.total, other))
            for each, other in ((model.centre, 0.0), (model.scale, 1.0))
        )
        every = np.zeros((len(values), wide.layout.size), wide.dtype)
        if len(values) > 1:
            job.optimizer.initialize(every[1:])
        values = columns.spread(values, model.n_outputs, every)
        return wide.of_features(centre, scale), kept._replace(values=values)

    def _fitted(self, model: LinearModel, params: NDArray[np.floating]) -> dict[str, Any]:
        """Return `coef_` and `intercept_`; see `Trainable._fitted`."""
        views = model.layout.views(model.plain(params))
        coef = np.ascontiguousarray(views["coef"].T)
        intercept = (
            views["intercept"].copy() if model.fit_intercept else np.zeros(len(coef), coef.dtype)
        )
        if not self._classification and model.n_outputs == 1:
            return {"coef_": coef[0], "intercept_": float(intercept[0])}
        return {"coef_": coef, "intercept_": intercept}

    def _tensors(self, model: Any, params: NDArray[np.floating]) -> dict[str, NDArray[np.floating]]:
        """Return `coef_` and `intercept_` by name."""
        found = self._fitted(model, params)
        return found | {"intercept_": np.atleast_1d(found["intercept_"]).astype(params.dtype)}

    def _tensor_names(self, model: Any) -> list[str]:
        return ["coef_", "intercept_"]

    def _from_tensors(
        self, model: Any, tensors: Mapping[str, NDArray[np.floating]]
    ) -> tuple[Any, NDArray[np.floating]]:
        """Return a model of unscaled features."""
        plain = model.of_features(None, None)
        params = plain.initial()
        views = plain.layout.views(params)
        views["coef"][...] = np.atleast_2d(tensors["coef_"]).T
        if plain.fit_intercept:
            views["intercept"][...] = tensors["intercept_"]
        return plain, params

    def _raw(self) -> LinearRaw:
        coef = np.ascontiguousarray(np.atleast_2d(self.coef_).T)
        return LinearRaw(coef, np.atleast_1d(self.intercept_))

    def _warm(self) -> TrainState | None:
        if not hasattr(self, "coef_"):
            return None
        parts = [np.ravel(np.atleast_2d(self.coef_).T)]
        if self.fit_intercept:
            parts.append(np.ravel(self.intercept_))
        return TrainState(np.concatenate(parts).astype(self.coef_.dtype))

    def to_sklearn(self) -> Any:
        """A fitted estimator of scikit-learn that predicts the same, to rounding.

        It is a ``LogisticRegression``, or ``SGDClassifier`` for other losses; a ``Ridge``,
        ``QuantileRegressor``, ``PoissonRegressor``, ``GammaRegressor`` or ``SGDRegressor``, for
        several targets in a ``MultiOutputRegressor``. It is for predictions: only the loss and
        `fit_intercept` are kept. It needs neither dps nor Dask, and skl2onnx
        converts it to ONNX. For encoded dataframes it is a ``Pipeline`` with a
        ``ColumnTransformer``; with buckets, lists, interactions or parts of dates with `encoder_`,
        which needs dps.

        Returns
        -------
        estimator of scikit-learn

        Raises
        ------
        NotFittedError
            The estimator has not been fitted.
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
        from dps.estimators.export.sklearn import plain_linear

        return plain_linear(self)

    def coefficients(self) -> pd.Series | pd.DataFrame:
        """The coefficients by the names of their columns.

        Returns
        -------
        pandas.Series, or DataFrame with a column for each of several classes or outputs
            An encoded dataframe has the names of its encoded columns, such as ``origin_JFK``.

        Examples
        --------
        >>> import pandas as pd
        >>> from dps import LinearRegressor
        >>> frame = pd.DataFrame({"size": [1.0, 2.0, 3.0, 4.0], "kind": ["a", "b", "a", "b"]})
        >>> LinearRegressor(alpha=0, tol=1e-9).fit(frame, [1, 12, 3, 14]).coefficients().round(2)
        size      1.0
        kind_a   -5.0
        kind_b    5.0
        Name: coefficient, dtype: float32
        """
        check_is_fitted(self)
        import pandas as pd

        names, coef = index_of(coefficient_names(self)), np.atleast_2d(self.coef_)
        if len(coef) == 1:
            return pd.Series(coef[0], index=names, name="coefficient")
        columns = self.classes_ if self._classification else range(len(coef))
        return pd.DataFrame(coef.T, index=names, columns=columns)


@estimator(model=LinearModel, linear=LINEAR)
class LinearClassifier(_Linear, Classifier):
    """A linear classifier, trained where its data lies.

    Minimises ``mean(loss) + alpha * penalty(coef)``, the objective of scikit-learn's SGD
    estimators; the intercept is not penalised. With the default ``alpha`` and ten rows or more per
    coefficient, it is ``LogisticRegression(C=1)`` behind a ``StandardScaler`` of the numbers.
    Otherwise held-out rows say how strong the penalty is to be. Several classes share
    one softmax for the log loss and are trained one against the rest for the other losses.

    Parameters
    ----------
    <label_loss>
    class_weight : dict, "balanced" or None, default=None
    <linear>
    <rows>
    <places>

    Attributes
    ----------
    coef_ : array of shape (1, n_features) or (n_classes, n_features)
    intercept_ : array of shape (1,) or (n_classes,)
    classes_ : array of shape (n_classes,)
        The numbers of the columns if y has several.
    multilabel_ : bool
        True if y had several columns, one for each label.
    alpha_ : float
        The strength of the penalty.
    standardize_ : bool
        True if numbers are standardized.
    alpha_path_ : array of shape (n, 3)
        Where the strength was looked for: those that were tried, the loss on held-out rows of
        each, and whether numbers were standardized.
    <attributes>

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dps import LinearClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> bool(LinearClassifier(random_state=0).fit(X, y).score(X, y) > 0.95)
    True
    """


@estimator(model=LinearModel, linear=LINEAR)
class LinearRegressor(_Linear, Regressor):
    """A linear regression, trained where its data lies.

    Minimises ``mean(loss) + alpha * penalty(coef)``, the objective of scikit-learn's SGD
    estimators; the intercept is not penalised. With the default ``alpha`` and loss, and ten rows
    or more per coefficient, it is ``Ridge(alpha=1)`` behind a ``StandardScaler`` of the numbers.
    Otherwise held-out rows say how strong the penalty is to be.

    Parameters
    ----------
    <number_loss>
    <linear>
    <rows>
    <places>

    Attributes
    ----------
    coef_ : array of shape (n_features,), or (n_outputs, n_features) if y has several columns
    intercept_ : float, or array of shape (n_outputs,)
    alpha_ : float
        The strength of the penalty.
    standardize_ : bool
        True if numbers are standardized.
    alpha_path_ : array of shape (n, 3)
        Where the strength was looked for: those that were tried, the loss on held-out rows of
        each, and whether numbers were standardized.
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
