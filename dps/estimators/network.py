"""Multilayer perceptrons that need neither scaling nor tuning.

The defaults were measured on the data of ``tests/benchmarks/network.py`` and on smaller sets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from dps.estimators.auto.alpha import AUTO
from dps.estimators.auto.constants import network_goes_on, scaling_of
from dps.estimators.auto.epochs import (
    EpochPlan,
    Outputs,
    Planned,
    auto_batch,
    auto_epochs,
    check_passes,
    choose_outputs,
    dtype_of,
    hidden_units,
    numbers_of,
    optimizer_of,
    planned_schedule,
    regularized,
)
from dps.estimators.auto.passes import passes
from dps.estimators.auto.steps import rate_of
from dps.estimators.base.classifier import Classifier
from dps.estimators.base.declare import estimator
from dps.estimators.base.regressor import Regressor
from dps.estimators.fit.survey import Request, Survey
from dps.losses.classification import Multilabel
from dps.models.network import Inputs, Network
from dps.optimizers import SGD, AdamW, Momentum, Optimizer
from dps.optimizers.averaged import base_of
from dps.training.state import check_unchanged

if TYPE_CHECKING:
    from dps._typing import (
        Activation,
        Auto,
        ClassificationLoss,
        RegressionLoss,
    )
    from dps.training.job import Job

#: Learning rates in the network's own units: of AdamW, and of optimizers that need a larger one.
_RATE_OF_CLASSES, _RATE_OF_NUMBERS = 0.02, 0.07
_RATES: dict[type[Optimizer], float] = {SGD: 1.0, Momentum: 0.2}
#: Bins of a number, and rows that each has at least; width of embeddings, and inputs that numbers
#: may make.
_BINS, _ROWS_A_BIN, _WIDTH, _INPUTS = 48, 50, 8, 256
#: Least weight decay; for labels the decay for one row, since networks of few rows are
#: over-confident; and the largest.
_DECAY, _DECAY_OF_A_ROW, _MOST_DECAY = 0.02, 300.0, 0.7
#: A weaker decay is searched for if the number of rows suggests this many times the least one.
_CLEAR = 3.0
#: How it is searched, see `Look`: after a share of the epochs, which slightly favours weak ones.
_COMPARED, _GAIN = 0.6, 0.05

_UNITS = """
hidden_layer_sizes : tuple of int, default=(128, 128)
    Units of each hidden layer.
activation : {"relu", "silu", "tanh", "logistic", "identity"}, default="relu"
"""

_MLP = """
alpha : float or "auto", default="auto"
    Strength of the L2 penalty: ``alpha / 2 * |w|**2`` is added to the mean loss of a row, in units
    of the deviation of y. scikit-learn's networks divide theirs by the rows. With AdamW "auto" is 0
    and the weight decay is 0.02; when labels are fitted it is 300 / rows if that is more, up to
    0.7. Above 0.06 it looks for a weaker one, down to 0.02, as linear models do, in fits of 0.6 of
    the epochs; one that lowers the loss of held-out rows by 5% and three standard errors replaces
    it. With other optimizers "auto" is that decay divided by the rows.
embedding_size : int or "auto", default="auto"
    Size of the embedding of a number's quantile bin, which is an input beside the scaled number. 0
    is none. "auto" is 8, or less so that all numbers make at most 256 inputs.
optimizer : str or Optimizer, default="auto"
    One of "auto", "lbfgs", <optimizers>.
    "auto" is AdamW with ``beta2=0.95``. "lbfgs" uses the gradient of all rows in each step, for few
    rows or if the last digit of the training loss counts. It has no `dropout`, `average`, early
    stopping or learning rate, and replicas wait in every mode. Layers are scaled by the root of
    their inputs and targets by their deviation, so one rate suits all widths and units.
average : bool, default=True
    If True, the parameters are an exponential mean over the last two epochs.
max_iter : int or "auto", default="auto"
    Maximal number of epochs. "auto" makes about 2,500 updates, in 12 to 100 epochs; for "lbfgs" it
    is 200 passes.
tol : float or None, default=0.0
    An epoch that lowers the monitored loss by less than this share of the loss of the best constant
    counts as bad. "lbfgs" ends if a step promises less than a hundredth of it.
n_iter_no_change : int or "auto", default="auto"
    Number of bad epochs in a row that ends the fit. "auto" is a third of `max_iter`, at least 8.
"""

_NETWORK = """
alpha_ : float
    Strength of the penalty; where `alpha` is "auto" with AdamW, the weight decay.
alpha_path_ : array of shape (n, 3)
    Where it was looked for: strengths that were tried, the loss on held-out rows of each, and zero.
coefs_ : list of (inputs, outputs) arrays
    Weights. The first layer's inputs are columns of categories and words, scaled numbers, then
    the numbers' embeddings.
intercepts_ : list of (outputs,) arrays
n_layers_, n_outputs_ : int
out_activation_ : {"logistic", "softmax", "identity"}
loss_curve_ : list of float
    The training loss of each epoch; `history_` has more.
"""


@dataclass(eq=False, repr=False, kw_only=True)
class _Perceptron(Planned):
    """The common part of the two estimators."""

    hidden_layer_sizes: int | Sequence[int] = field(default=(128, 128), kw_only=False)
    activation: Activation = field(default="relu", kw_only=False)
    embedding_size: int | Auto = "auto"
    average: bool = True
    validation_fraction: float = 0.15

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "embedding_size": [Interval(Integral, 0, None, closed="left"), StrOptions({"auto"})],
        "average": ["boolean"],
    }

    def _check(self, request: Request) -> None:
        """Check that the loss has a kernel, and the names."""
        super()._check(request)
        optimizer_of(self.optimizer)
        if self.optimizer == "lbfgs":
            check_passes(self, request.partial)
        planned_schedule(rate_of(self), 1.0, 1)
        hidden_units(self.hidden_layer_sizes)

    def _plan(self, survey: Survey) -> Job:
        """Train by AdamW with a cosine schedule and a mean over the last epochs, or by L-BFGS."""
        summary, by_passes = survey.summary, self.optimizer == "lbfgs"
        if survey.start is not None and survey.start.model is not None:
            survey.start = network_goes_on(survey.start, summary.points)
        plan = EpochPlan.of(self, survey, by_passes)
        outputs = choose_outputs(survey)
        optimizer: Optimizer = optimizer_of(self.optimizer, outputs.slope)
        rate = _RATES.get(type(optimizer), optimizer.default_schedule.rate)
        if isinstance(base_of(optimizer), AdamW):
            rate = _RATE_OF_CLASSES if self._classification else _RATE_OF_NUMBERS
        if self.average and not by_passes:
            optimizer = plan.averaged(optimizer)
        decay = self._decay(survey, plan)
        # Few rows need the strong decay that their number suggests, unless their labels are clean.
        asks = summary.total if decay > _CLEAR * _DECAY else 0
        look = AUTO._replace(least=_GAIN, reach=(math.log10(_DECAY / decay), 0.0))
        of_a_row = decay / survey.rows_so_far
        optimizer, l2 = regularized(survey, optimizer, decay, of_a_row, asks, look)
        stopping = plan.stopping(survey.tol, 8)
        return survey.job(
            self._network(survey, outputs),
            optimizer,
            plan.schedule(survey, float(rate)),
            l2=l2,
            stopping=stopping,
            batch_size=plan.batch,
            full_batch=passes(summary, survey.tol, stopping.n_iter_no_change, l2)
            if by_passes
            else None,
        )

    def _epochs_to_compare(self, rows: int) -> int:
        most = self._most_epochs
        if self.max_iter == "auto":
            batch = auto_batch(rows) if self.batch_size == "auto" else int(self.batch_size)
            most = auto_epochs(rows, min(batch, rows))
        return max(1, round(_COMPARED * most))

    def _decay(self, survey: Survey, plan: EpochPlan) -> float:
        """Return the weight decay for the number of rows; the least one for streams."""
        streams = survey.partial and not survey.goes_on_from_fit
        if streams or not self._classification:
            return _DECAY
        rows = survey.rows_so_far if survey.partial else plan.rows
        return max(_DECAY, min(_DECAY_OF_A_ROW / rows, _MOST_DECAY))

    def _network(self, survey: Survey, outputs: Outputs) -> Network:
        before = None if survey.start is None else survey.start.model
        hidden, n_outputs = hidden_units(self.hidden_layer_sizes), survey.n_outputs
        if before is not None:
            inputs, dtype = before.inputs, before.dtype
            check_unchanged(
                {
                    "hidden_layer_sizes": (before.sizes[1:-1], tuple(hidden)),
                    "the number of outputs": (before.sizes[-1], n_outputs),
                    "the number of features": (before.n_features, survey.summary.n_features),
                }
            )
        else:
            inputs = _inputs(survey, self.embedding_size)
            dtype = dtype_of(survey.summary, inputs.edges, survey.targets.units)
        dropout = 0.0 if self.optimizer == "lbfgs" else float(self.dropout)
        return Network(
            inputs, hidden, n_outputs, outputs.loss, self.activation, dropout, dtype,
            outputs.shift, outputs.scale,
        )  # fmt: skip

    def _fitted(self, model: Network, params: NDArray[np.floating]) -> dict[str, Any]:
        """Return the layers in scikit-learn's form; see `Trainable._fitted`."""
        coefs, intercepts = model.layers(params)
        kind = "identity"
        if self._classification:
            single = model.n_outputs == 1 or isinstance(model.loss, Multilabel)
            kind = "logistic" if single else "softmax"
        return {
            "coefs_": coefs,
            "intercepts_": intercepts,
            "n_layers_": len(coefs) + 1,
            "n_outputs_": model.n_outputs,
            "out_activation_": kind,
        }

    def to_sklearn(self) -> Any:
        """A fitted network of scikit-learn that predicts the same, to rounding.

        Scaling and embedding of numbers become one more hidden layer of ReLU units. For numeric
        columns it is a ``Pipeline`` of ``StandardScaler``, ``MinMaxScaler`` (which cuts off values
        outside all bins) and scikit-learn's network on dense rows, which skl2onnx can convert. For
        encoded dataframes it starts with a ``ColumnTransformer``, or with `encoder_` if
        scikit-learn has no such columns. For wide sparse rows it is the network alone.

        Returns
        -------
        estimator of scikit-learn

        Raises
        ------
        NotFittedError
            The estimator has not been fitted.
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
        from dps.estimators.export.network import plain_network

        return plain_network(self)

    @property
    def loss_curve_(self) -> list[float]:
        """The training loss of each epoch."""
        return [epoch["loss"] for epoch in self.history_]


@estimator(model=Network, units=_UNITS, mlp=_MLP, network=_NETWORK)
class MLPClassifier(_Perceptron, Classifier):
    """A multilayer perceptron for labels, trained where its data lies.

    Its defaults need neither scaling nor tuning. Numbers go in scaled by their quartiles, and
    embedded by their place among quantiles of their column; columns of categories and of sparse
    rows go in as they are.

    Parameters
    ----------
    <units>
    <label_loss>
    class_weight : dict, "balanced" or None, default=None
    <mlp>
    <planned>
    <rows>
    <places>

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        The numbers of the columns if y has several.
    multilabel_ : bool
        True if y had several columns, one for each label.
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

    loss: ClassificationLoss = "log_loss"


@estimator(model=Network, units=_UNITS, mlp=_MLP, network=_NETWORK)
class MLPRegressor(_Perceptron, Regressor):
    """A multilayer perceptron for numbers, trained where its data lies.

    Its defaults need neither scaling nor tuning, as those of :class:`MLPClassifier`. Nor do they
    depend on the unit or the offset of y; of several targets each counts in units of its own
    deviation, and losses are reported times the mean of their variances.

    Parameters
    ----------
    <units>
    <number_loss>
    <mlp>
    <planned>
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

    loss: RegressionLoss = "squared_error"


def _inputs(survey: Survey, width: Any) -> Inputs:
    """Return the input layer of a network for the values of the columns."""
    summary, encoding, numbers = survey.summary, survey.encoding, numbers_of(survey)
    n = summary.n_features
    if encoding is not None:
        square = float(len(encoding.encoder._layout.members) - len(numbers))
    else:
        square = 0.0 if len(numbers) else summary.square / summary.total
    places = np.full(n, -1, np.int64)
    places[numbers] = np.arange(len(numbers))
    plain = np.flatnonzero(places < 0)
    places[plain] = -1 - np.arange(len(plain))
    points = summary.points or ()
    centre, spread = scaling_of(points)
    bins = int(np.clip(summary.total // _ROWS_A_BIN, 2, _BINS))
    if width == "auto":
        width = min(_WIDTH, max(0, _INPUTS // max(1, len(numbers)) - 1))
    return Inputs(
        places, centre, spread, tuple(each.edges(bins) for each in points), int(width), square
    )
