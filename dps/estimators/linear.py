"""Linear classification and regression."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from dps.cluster.choice import client_of
from dps.data.alignment import in_memory
from dps.data.inspection import DataSummary
from dps.data.partitions import as_pandas, is_dask, meta_of
from dps.data.targets import class_weights
from dps.estimators.base import DistributedEstimator
from dps.estimators.choices import check_stochastic
from dps.estimators.encoding import coefficient_names, select
from dps.estimators.prediction import (
    EncodedPredictor,
    LinearPredictor,
    Predictor,
    apply_to,
)
from dps.estimators.scoring import accuracy, determination
from dps.estimators.start import Start
from dps.losses import Loss, get_loss
from dps.models import LinearModel

__all__ = ["LinearClassifier", "LinearRegressor"]


class _Linear(DistributedEstimator):
    """What the two linear estimators share."""

    coef_: NDArray[np.floating]
    intercept_: NDArray[np.floating]

    def _make_model(self, loss: Loss, n_features: int, n_outputs: int, dtype: Any) -> LinearModel:
        return LinearModel(n_features, n_outputs, loss, self.fit_intercept, dtype)

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train to the stopping rule.

        Parameters
        ----------
        X : array, sparse matrix, dataframe, dask array or dask dataframe of shape (n, n_features)
            Numbers; a dataframe may also have columns of categories, strings and lists, see
            `encoder`. Or a list of Delayed objects or Futures, one a partition, of numbers. Blocks
            of a dask array may be sparse; lengths may be unknown, partitions empty or unequal.
        y : vector of length n, for a regression also of shape (n, n_outputs)
            Of the same kind as `X` or another one: partition i belongs to partition i of
            `X`, and its rows in order. No index is looked at. A local one is cut like `X`
            where the lengths of its partitions are known.
        sample_weight : vector of length n, optional
            Likewise. Scaled to average 1 over all rows, also those kept for validation.

        Returns
        -------
        self

        Raises
        ------
        ValueError, TypeError
            A parameter or the data is not as it should be; where, and what to do.
        dps.errors.DPSError
            The cluster failed.
        """
        self._validate_params()
        start, classes = Start(), None
        if self.warm_start and hasattr(self, "coef_"):
            start = Start(params=self._warm_params())
            classes = getattr(self, "classes_", None)
        return self._run(
            X, y, sample_weight, start=start, max_iter=self.max_iter, tol=self.tol, classes=classes
        )

    def _warm_params(self) -> NDArray[np.floating]:
        parts = [np.ravel(np.atleast_2d(self.coef_).T)]
        if self.fit_intercept:
            parts.append(np.ravel(self.intercept_))
        return np.concatenate(parts).astype(self.coef_.dtype)

    def _tensors(self, model: Any, params: NDArray[np.floating]) -> tuple[Any, Any]:
        views = model.layout.views(model.uncentred(params))
        coef = np.ascontiguousarray(views["coef"].T)
        if self.fit_intercept:
            return coef, views["intercept"].copy()
        return coef, np.zeros(len(coef), coef.dtype)

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

    def _input(self, X: Any) -> Any:
        check_is_fitted(self)
        if self.encoder_ is not None:
            return select(self, self.encoder_, X, reset=False)
        if is_dask(X):
            meta = meta_of(X)
            if meta is not None:
                validate_data(self, X=meta, skip_check_array=True, reset=False)
            return X
        return self._plain(X, reset=False, all_finite=True)

    def _apply(self, X: Any, finish: Any, columns: Any = None) -> Any:
        coef = np.ascontiguousarray(np.atleast_2d(self.coef_).T)
        names = getattr(self, "feature_names_in_", None)
        encoder = self.encoder_
        predict: Predictor
        if encoder is None:
            predict = LinearPredictor(coef, np.atleast_1d(self.intercept_), finish, names)
        else:
            linear = LinearPredictor(coef, np.atleast_1d(self.intercept_), finish)
            predict = EncodedPredictor(encoder.encode, linear)
        return apply_to(self._input(as_pandas(X)), predict, columns)

    def _in_memory(self, y: Any, weight: Any) -> tuple[Any, Any]:
        """Targets and weights beside a local X; nobody is asked where they are local too."""
        y, weight = as_pandas(y), as_pandas(weight)
        if not (is_dask(y) or is_dask(weight)):
            return y, weight
        with client_of(self.client, self.timeout) as client:
            return in_memory(y, "y", client), in_memory(weight, "sample_weight", client)


def _first_mean(loss: Loss, raw: NDArray[np.floating]) -> NDArray[np.floating]:
    mean: NDArray[np.floating] = loss.mean(raw)[:, 0]
    return mean


def _first_column(raw: NDArray[np.floating]) -> NDArray[np.floating]:
    return raw[:, 0]


def _as_is(raw: NDArray[np.floating]) -> NDArray[np.floating]:
    return raw


def _logarithms(of: Any, raw: NDArray[np.floating]) -> NDArray[np.floating]:
    logarithms: NDArray[np.floating] = np.log(of(raw))
    return logarithms


class _Labels:
    """From raw outputs to labels."""

    def __init__(self, classes: NDArray[Any]) -> None:
        self.classes = classes

    def __call__(self, raw: NDArray[np.floating]) -> NDArray[Any]:
        codes = (raw[:, 0] > 0).astype(np.intp) if raw.shape[1] == 1 else raw.argmax(axis=1)
        labels: NDArray[Any] = self.classes[codes]
        return labels


def _has_probabilities(estimator: LinearClassifier) -> bool:
    loss = estimator._loss()
    if loss.has_probabilities:
        return True
    raise AttributeError(
        f"probability estimates are not available for loss={estimator.loss!r}; "
        "use 'log_loss' or 'modified_huber'"
    )


class LinearClassifier(ClassifierMixin, _Linear):
    """A linear classifier, trained where its data lies.

    Minimises ``mean(loss) + alpha * penalty(coef)``, the objective of scikit-learn's SGD
    estimators; the intercept is not penalised. With the default ``alpha`` it is
    ``LogisticRegression(C=1)``. Several classes share one softmax for the log loss and
    are trained one against the rest for the other losses.

    Parameters
    ----------
    loss : {"log_loss", "hinge", "squared_hinge", "modified_huber"} or Loss, default="log_loss"
    penalty : {"l2", "l1", "elasticnet"} or None, default="l2"
        L-BFGS ends with the zeros of L1; stochastic steps leave some of them small.
    alpha : float or "auto", default="auto"
        Strength of the penalty; "auto" is 1 / (sum of sample weights), or 1 / rows.
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
    shuffle : bool or "global", default=True
        Whether stochastic steps take rows in a fresh order in each epoch: each replica mixes
        what lies on its worker. "global" first gives every row to a worker by chance, once a
        fit, at the price of a copy of the data; L-BFGS, which has no order, does without.
    random_state : int, RandomState or None, default=None
    early_stopping : bool, default=False
        Whether rows are held out and their loss decides when to stop.
    validation_fraction : float, default=0.1
        Share of rows held out.
    n_iter_no_change : int, default=5
        Bad epochs in a row that end the fit.
    class_weight : dict, "balanced" or None, default=None
    warm_start : bool, default=False
        Whether `fit` starts from the coefficients that are there.
    average : bool or int, default=False
        Whether the parameters are averaged over updates; a number starts when so many
        rows have been seen.
    verbose : int, default=0
        1 shows a bar, 2 a line an epoch in the log (of the logger "dps").
    encoder : FrameEncoder or "auto", default="auto"
        What makes numbers of a dataframe. "auto" is ``FrameEncoder()`` where a column is not of
        numbers, and nothing where all are. Partitions are encoded where they lie, and columns are
        found by name in predictions. `partial_fit` and `warm_start` keep the first encoder: what
        it does not know is ignored.
    optimizer : str or Optimizer, default="auto"
        One of "auto", "lbfgs", "sgd", "momentum", "adagrad", "scaled_adagrad" and "adam".
        "lbfgs" takes its steps from the gradient of all rows, in coordinates in which
        features vary alike; features need not be scaled. "auto" is L-BFGS, unless something
        was asked for that only stochastic steps have: `learning_rate`, `batch_size`,
        `average`, `early_stopping`, ``tol=None``. Then it is scaled Adagrad, for which
        features need not be scaled, either; for the others scale them. In async it is scaled
        Adagrad until that gains little, and then L-BFGS, for whose passes replicas wait for
        each other. Where sparse rows say little of each column (text) and `alpha` is small,
        it is Adagrad in every mode.
    learning_rate : float, Schedule, {"constant", "invscaling", "step", "cosine"} or "auto"
    batch_size : int or "auto", default="auto"
        Rows of one update: of all replicas together, in async of one.
    mode : {"sync", "async", "allreduce"} or Mode, default="sync"
    n_replicas, n_shards : int or "auto", default="auto"
        One replica a thread of each worker that holds data, where there is work for it;
        one shard a host.
    rebalance : bool or "auto", default="auto"
        Whether rows may be copied to less loaded workers, as few as possible, so that
        replicas finish together. "auto" does so for stochastic steps, of which there may be
        10 epochs or more, where the slowest replica would have over a fifth more rows than
        it needs to have, and much data.
    cache : {"auto", "memory", "disk"} or None, default="auto"
        Where data is kept that Dask has not persisted: "auto" fills half of a worker's memory,
        then its local directory, and computes again in each epoch what does not fit there. None
        keeps nothing. What is not in memory is read, and encoded, in a thread beside training.
    client : Client of distributed, cluster, address of a scheduler or None, default=None
        None: the active client, if there is one. With a cluster or an address a client is connected
        for each fit.
    timeout : float, default=60.0
        Seconds without progress that are an error.

    Attributes
    ----------
    coef_ : array of shape (1, n_features) or (n_classes, n_features)
    intercept_ : array of shape (1,) or (n_classes,)
    classes_ : array of shape (n_classes,)
    n_features_in_, feature_names_in_
        As in scikit-learn; of the dataframe, where that is encoded.
    encoder_ : FrameEncoder or None
        The fitted encoder, whose columns the coefficients belong to.
    n_iter_ : int
        Epochs closed.
    loss_ : float
        Mean training loss seen during the last epoch, without penalty.
    history_ : History
        A list of a dict an epoch: its number, `loss`, `validation_loss`, `rows`,
        `rows_per_replica` (each sees its rows once), `seconds`, `rows_per_second`, staleness,
        and `full_batch`: whether it was a pass over all rows, which replicas wait for.
        ``history_.to_frame()`` is a dataframe, ``history_.plot()`` draws loss and throughput.
    plan_ : Plan
        Which replica had which rows.
    fit_report_ : FitReport
        How the fit went, as text (``print(est.fit_report_)``) and in notebooks: where the time
        of each replica went, and what to change.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dps import LinearClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> bool(LinearClassifier(random_state=0).fit(X, y).score(X, y) > 0.95)
    True
    """

    _classification = True
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **DistributedEstimator._parameter_constraints,
        "class_weight": [dict, str, None],
    }

    def __init__(
        self,
        loss: Any = "log_loss",
        *,
        penalty: Any = "l2",
        alpha: Any = "auto",
        l1_ratio: float = 0.15,
        fit_intercept: bool = True,
        max_iter: int = 1000,
        tol: float | None = 1e-4,
        shuffle: bool | str = True,
        random_state: Any = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 5,
        class_weight: Any = None,
        warm_start: bool = False,
        average: bool | int = False,
        verbose: int = 0,
        encoder: Any = "auto",
        optimizer: Any = "auto",
        learning_rate: Any = "auto",
        batch_size: Any = "auto",
        mode: Any = "sync",
        n_replicas: Any = "auto",
        n_shards: Any = "auto",
        rebalance: bool | str = "auto",
        cache: str | None = "auto",
        client: Any = None,
        timeout: float = 60.0,
    ) -> None:
        self.loss = loss
        self.penalty = penalty
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.shuffle = shuffle
        self.random_state = random_state
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.class_weight = class_weight
        self.warm_start = warm_start
        self.average = average
        self.verbose = verbose
        self.encoder = encoder
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.mode = mode
        self.n_replicas = n_replicas
        self.n_shards = n_shards
        self.rebalance = rebalance
        self.cache = cache
        self.client = client
        self.timeout = timeout

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train one epoch, carrying on with parameters and optimizer state.

        By stochastic steps, also after a `fit` by L-BFGS. The scale of features is that of the
        rows of the first call. ``alpha="auto"`` and ``batch_size="auto"`` go by the rows of
        this call: give numbers where they should be those of all data.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`.
        classes : array of shape (n_classes,), optional
            All labels that will ever come; needed in the first call.
        """
        self._validate_params()
        check_stochastic(self)
        if isinstance(self.class_weight, str):
            raise ValueError(
                f"class_weight={self.class_weight!r} is not possible with partial_fit: give a "
                "dict of weights computed over all rows"
            )
        first = not hasattr(self, "_carry")
        if first and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit.")
        known = np.unique(classes) if first else self.classes_
        if classes is not None and not np.array_equal(np.unique(classes), known):
            raise ValueError(
                f"`classes={classes!r}` is not the same as on last call to partial_fit, was: "
                f"{known!r}"
            )
        start = Start() if first else self._carry
        return self._run(
            X, y, sample_weight, start=start, max_iter=1, tol=None, classes=known, reset=first
        )

    def decision_function(self, X: Any) -> Any:
        """Raw outputs: (n,) for two classes, else (n, n_classes). Lazy for Dask input."""
        check_is_fitted(self)
        if len(self.classes_) > 2:
            return self._apply(X, _as_is, self._class_names())
        return self._apply(X, _first_column)

    def _class_names(self) -> list[str]:
        """Names of columns: Parquet takes texts only."""
        return [str(label) for label in self.classes_]

    def predict(self, X: Any) -> Any:
        """Labels, (n,). Lazy for Dask input."""
        check_is_fitted(self)
        return self._apply(X, _Labels(self.classes_))

    @available_if(_has_probabilities)
    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes, (n, n_classes). Lazy for Dask input."""
        check_is_fitted(self)
        loss = self._loss().for_classes(len(self.classes_))
        return self._apply(X, loss.probabilities, self._class_names())

    @available_if(_has_probabilities)
    def predict_log_proba(self, X: Any) -> Any:
        """Logarithms of the probabilities. Lazy for Dask input."""
        check_is_fitted(self)
        loss = self._loss().for_classes(len(self.classes_))
        return self._apply(X, partial(_logarithms, loss.probabilities), self._class_names())

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Share of rows whose label is predicted; computed where the data lies."""
        predicted = self.predict(X)
        if not is_dask(predicted):
            return float(super().score(X, *self._in_memory(y, sample_weight)))
        with client_of(self.client, self.timeout) as client:
            return accuracy(predicted, y, sample_weight, client)

    def _loss(self) -> Loss:
        return get_loss(self.loss, "classification")

    def _class_weight(self, summary: DataSummary, classes: NDArray[Any]) -> Any:
        weights = np.zeros(len(classes))
        weights[np.searchsorted(classes, summary.classes)] = summary.class_weights
        return class_weights(self.class_weight, classes, weights)

    def _keep(self, model: Any, params: NDArray[np.floating]) -> None:
        self.coef_, self.intercept_ = self._tensors(model, params)


class LinearRegressor(RegressorMixin, _Linear):
    """A linear regression, trained where its data lies.

    Minimises ``mean(loss) + alpha * penalty(coef)``, the objective of scikit-learn's SGD
    estimators; the intercept is not penalised. With the default ``alpha`` and loss it is
    ``Ridge(alpha=1)``.

    Parameters
    ----------
    loss : str or Loss, default="squared_error"
        "squared_error", "huber", "epsilon_insensitive", "quantile" (the median;
        ``dps.losses.Quantile(0.9)`` another), or "poisson" (counts) and "gamma" (amounts), whose
        mean is the exponential of the linear function.
    penalty, alpha, l1_ratio, fit_intercept, max_iter, tol, shuffle, random_state
        As in :class:`LinearClassifier`.
    early_stopping, validation_fraction, n_iter_no_change, warm_start, average, verbose, encoder
        As in :class:`LinearClassifier`.
    optimizer, learning_rate, batch_size, mode, n_replicas, n_shards, rebalance
        As in :class:`LinearClassifier`.
    cache, client, timeout
        As in :class:`LinearClassifier`.

    Attributes
    ----------
    coef_ : array of shape (n_features,), or (n_outputs, n_features) if y has several columns
    intercept_ : array of shape (1,) or (n_outputs,)
    n_features_in_, feature_names_in_, encoder_, n_iter_, loss_, history_, plan_,
    fit_report_
        As in :class:`LinearClassifier`.

    Examples
    --------
    >>> import numpy as np
    >>> from dps import LinearRegressor
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> model = LinearRegressor(random_state=0).fit(X, X @ [1.0, 2.0, 0.0])
    >>> bool(model.score(X, X @ [1.0, 2.0, 0.0]) > 0.95)
    True
    """

    _classification = False

    def __init__(
        self,
        loss: Any = "squared_error",
        *,
        penalty: Any = "l2",
        alpha: Any = "auto",
        l1_ratio: float = 0.15,
        fit_intercept: bool = True,
        max_iter: int = 1000,
        tol: float | None = 1e-4,
        shuffle: bool | str = True,
        random_state: Any = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 5,
        warm_start: bool = False,
        average: bool | int = False,
        verbose: int = 0,
        encoder: Any = "auto",
        optimizer: Any = "auto",
        learning_rate: Any = "auto",
        batch_size: Any = "auto",
        mode: Any = "sync",
        n_replicas: Any = "auto",
        n_shards: Any = "auto",
        rebalance: bool | str = "auto",
        cache: str | None = "auto",
        client: Any = None,
        timeout: float = 60.0,
    ) -> None:
        self.loss = loss
        self.penalty = penalty
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.shuffle = shuffle
        self.random_state = random_state
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.average = average
        self.verbose = verbose
        self.encoder = encoder
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.mode = mode
        self.n_replicas = n_replicas
        self.n_shards = n_shards
        self.rebalance = rebalance
        self.cache = cache
        self.client = client
        self.timeout = timeout

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train one epoch, carrying on with parameters and optimizer state.

        ``alpha="auto"`` and ``batch_size="auto"`` go by the rows of this call: give numbers
        where they should be those of all data.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`.
        """
        self._validate_params()
        check_stochastic(self)
        first = not hasattr(self, "_carry")
        start = Start() if first else self._carry
        return self._run(X, y, sample_weight, start=start, max_iter=1, tol=None, reset=first)

    def predict(self, X: Any) -> Any:
        """Predicted values, (n,), or (n, n_outputs) if y had several columns.

        Lazy for Dask input.
        """
        check_is_fitted(self)
        if self.coef_.ndim == 2:
            names = [str(number) for number in range(len(self.coef_))]
            return self._apply(X, self._loss().mean, names)
        return self._apply(X, partial(_first_mean, self._loss()))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Coefficient of determination, of several outputs their mean.

        Computed where the data lies.
        """
        predicted = self.predict(X)
        if not is_dask(predicted):
            return float(super().score(X, *self._in_memory(y, sample_weight)))
        with client_of(self.client, self.timeout) as client:
            return determination(predicted, y, sample_weight, client)

    def _loss(self) -> Loss:
        return get_loss(self.loss, "regression")

    def _keep(self, model: Any, params: NDArray[np.floating]) -> None:
        coef, self.intercept_ = self._tensors(model, params)
        self.coef_ = coef if model.n_outputs > 1 else coef[0]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
