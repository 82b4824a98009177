"""Multilayer perceptrons that need neither scaling nor tuning."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from dps.data.blocks import features_of
from dps.estimators.base import DistributedEstimator
from dps.estimators.docs import ATTRIBUTES, PLACES, ROWS, documented
from dps.estimators.network_family import NetworkFamily
from dps.estimators.plain_network import plain_network
from dps.estimators.tasks import Classifier, Regressor
from dps.models import Network
from dps.optimizers import Optimizer
from dps.optimizers.schedules import Schedule
from dps.training.state import TrainState

__all__ = ["MLPClassifier", "MLPRegressor"]


@dataclass(frozen=True, eq=False)
class _Raw:
    """Raw outputs of a network: of float32 in float32, else in float64, however it was trained."""

    network: Network
    params: NDArray[np.floating]  # (n,)

    @property
    def n_features(self) -> int:
        return self.network.n_features

    @property
    def dtype(self) -> Any:
        return self.network.dtype

    def __call__(self, X: Any) -> NDArray[np.floating]:
        if not hasattr(X, "tocsr") and self.network.inputs.n_plain:
            from scipy.sparse import csr_array

            X = csr_array(X)
        dtype = np.dtype("f4" if X.dtype == np.float32 else "f8")
        rows = features_of(X, dtype).rows(0, X.shape[0], None)
        network = self.network.with_dtype(dtype)
        raw: NDArray[np.floating] = network.raw(self.params.astype(dtype), rows)
        return raw


_MLP = """
hidden_layer_sizes : tuple of int, default=(128, 128)
activation : {"relu", "silu", "tanh", "logistic", "identity"}, default="relu"
alpha : float, default=0.02
    Strength of the L2 penalty; with the solver "auto" it is the weight decay of AdamW, with "lbfgs"
    it is divided by the rows, as in scikit-learn.
dropout : float, default=0.15
    Share of the units of each hidden layer that a training row does without.
embedding_size : int or "auto", default="auto"
    Outputs into which the place of a number among the quantiles of its column is embedded, beside
    the scaled number; 0: none. "auto" is 8, or as many as make 256 inputs of all numbers.
solver : str or Optimizer, default="auto"
    "auto" is AdamW with ``beta2=0.95``; or one of "adam", "adamw", "sgd", "momentum", "adagrad",
    "scaled_adagrad". "lbfgs" takes its steps from the gradient of all rows, for which replicas wait
    in every mode: for few rows, or where the last digit of the training loss counts. It knows no
    `dropout`, `average`, early stopping or learning rate.
learning_rate : Schedule or {"auto", "cosine", "constant", "invscaling", "step"}, default="auto"
    "auto" is a cosine over `max_iter` epochs after a short warm-up; in `partial_fit` constant.
learning_rate_init : float or "auto", default="auto"
    The rate that the schedule starts from. Layers are scaled by the root of their inputs, so that
    one rate suits all widths.
average : bool, default=True
    Whether the parameters are those of an exponential mean over the last two epochs.
max_iter : int or "auto", default="auto"
    Epochs; "auto" makes about 2,500 updates, in 12 to 100 epochs; of "lbfgs" it is 200 passes.
tol : float or None, default=0.0
    An epoch that does not lower the monitored loss by more than this counts as bad. "lbfgs" ends
    where a step promises less than a hundredth of it.
early_stopping : bool or "auto", default="auto"
    Whether rows are held out, unless they are given to `fit` as `X_val`; then the parameters are
    those of the epoch in which their loss was lowest. "auto" holds out where there are 100 rows or
    more, and takes what is given.
warm_start : bool, default=False
    Whether `fit` goes on from the network that is there.
n_iter_no_change : int or "auto", default="auto"
    Bad epochs in a row that end the fit; "auto" is a third of `max_iter`, at least 8.
"""

_NETWORK = """
coefs_ : list of (inputs, outputs) arrays
    Weights. The first layer's inputs are columns of categories and words, scaled numbers, then
    the numbers' embeddings.
intercepts_ : list of (outputs,) arrays
n_layers_, n_outputs_ : int
out_activation_ : {"logistic", "softmax", "identity"}
loss_curve_ : list of float
    The training loss of each epoch; `history_` has more.
"""

_shared = documented(mlp=_MLP, rows=ROWS, places=PLACES, network=_NETWORK, attributes=ATTRIBUTES)


@dataclass(eq=False, repr=False, kw_only=True)
class _Perceptron(DistributedEstimator):
    """What the two estimators share."""

    hidden_layer_sizes: Any = field(default=(128, 128), kw_only=False)
    activation: str = field(default="relu", kw_only=False)
    alpha: float = 0.02
    dropout: float = 0.15
    embedding_size: Any = "auto"
    solver: Any = "auto"
    learning_rate: Any = "auto"
    learning_rate_init: Any = "auto"
    average: bool = True
    max_iter: Any = "auto"
    tol: float | None = 0.0
    early_stopping: Any = "auto"
    validation_fraction: float = 0.15
    n_iter_no_change: Any = "auto"

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "hidden_layer_sizes": ["array-like", Interval(Integral, 1, None, closed="left")],
        "activation": [StrOptions({"relu", "silu", "tanh", "logistic", "identity"})],
        "alpha": [Interval(Real, 0, None, closed="left")],
        "dropout": [Interval(Real, 0, 1, closed="left")],
        "embedding_size": [Interval(Integral, 0, None, closed="left"), StrOptions({"auto"})],
        "solver": [str, Optimizer],
        "learning_rate": [str, Schedule],
        "learning_rate_init": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
        "average": ["boolean"],
        "max_iter": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "early_stopping": ["boolean", StrOptions({"auto"})],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
    }

    def _family(self) -> NetworkFamily:
        return NetworkFamily(self)

    def _raw(self) -> _Raw:
        return _Raw(self._network, self._params)

    def _warm(self) -> TrainState | None:
        if not hasattr(self, "_network"):
            return None
        return TrainState(self._params, self._network)

    def to_sklearn(self) -> Any:
        """A fitted network of scikit-learn that predicts the same, to rounding.

        Scaling and embedding of numbers become one more hidden layer, of ReLU units. It is a
        ``Pipeline``: where all columns are numbers, of ``StandardScaler``, ``MinMaxScaler`` (which
        cuts off what lies outside all bins) and scikit-learn's ``MLPClassifier`` or
        ``MLPRegressor``, which take dense rows and which skl2onnx makes ONNX of; where dataframes
        are encoded, of a ``ColumnTransformer``, or of `encoder_` where scikit-learn has no such
        columns, and the network. Of wide sparse rows, whose
        columns go in as they are, it is the network alone, and takes sparse rows too.

        Returns
        -------
        estimator of scikit-learn

        Raises
        ------
        NotFittedError
            There is nothing trained yet.
        ValueError
            scikit-learn has no such network: it has no ``activation="silu"``, others than "relu"
            only with ``embedding_size=0`` and without categories, and of the losses of labels the
            log loss only.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from dps import MLPClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> MLPClassifier(random_state=0).fit(X, y).to_sklearn().predict(X[:2])
        array([0, 0])
        """
        check_is_fitted(self)
        return plain_network(self)

    @property
    def loss_curve_(self) -> list[float]:
        """The training loss of each epoch."""
        return [epoch["loss"] for epoch in self.history_]


@_shared
@dataclass(eq=False, repr=False, kw_only=True)
class MLPClassifier(_Perceptron, Classifier):
    """A multilayer perceptron for labels, trained where its data lies.

    Its defaults need neither scaling nor tuning. Numbers go in scaled by their quartiles, and
    embedded by their place among quantiles of their column; columns of categories and of sparse
    rows go in as they are.

    Parameters
    ----------
    loss : {"log_loss", "hinge", "squared_hinge", "modified_huber"} or Loss, default="log_loss"
    class_weight : dict, "balanced" or None, default=None
    <mlp>
    <rows>
    <places>

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        Of a y of several columns, their numbers.
    multilabel_ : bool
        Whether y had several columns, one a label.
    <network>
    <attributes>

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dps import MLPClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> bool(MLPClassifier(random_state=0).fit(X, y).score(X, y) > 0.95)
    True
    """

    loss: Any = "log_loss"


@_shared
@dataclass(eq=False, repr=False, kw_only=True)
class MLPRegressor(_Perceptron, Regressor):
    """A multilayer perceptron for numbers, trained where its data lies.

    Its defaults need neither scaling nor tuning, as those of :class:`MLPClassifier`.

    Parameters
    ----------
    loss : str or Loss, default="squared_error"
        "squared_error", "huber", "epsilon_insensitive", "quantile" (the median;
        ``dps.losses.Quantile(0.9)`` another), or "poisson" (counts) and "gamma" (amounts), whose
        mean is the exponential of the network's output.
    <mlp>
    <rows>
    <places>

    Attributes
    ----------
    <network>
    <attributes>

    Examples
    --------
    >>> import numpy as np
    >>> from dps import MLPRegressor
    >>> X = np.random.default_rng(0).uniform(-1, 1, size=(500, 2))
    >>> y = X[:, 0] * X[:, 1]
    >>> bool(MLPRegressor(random_state=0).fit(X, y).score(X, y) > 0.9)
    True
    """

    loss: Any = "squared_error"

    def _several(self) -> int | None:
        return None if self.n_outputs_ == 1 else self.n_outputs_
