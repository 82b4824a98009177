"""Factorization machines, and with layers on top of the factors DeepFM.

The defaults were measured on the data of ``tests/benchmarks/factorization.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from dps.estimators.auto.constants import machine_goes_on
from dps.estimators.auto.epochs import (
    EpochPlan,
    Outputs,
    Planned,
    adamw,
    choose_outputs,
    dtype_of,
    hidden_units,
    planned_schedule,
    regularized,
)
from dps.estimators.auto.steps import check_known, rate_of
from dps.estimators.auto.table_rows import inputs_of, row_names
from dps.estimators.base.classifier import Classifier
from dps.estimators.base.declare import estimator
from dps.estimators.base.regressor import Regressor
from dps.estimators.fit.survey import Request, Survey
from dps.estimators.predict.predict import FittedModel
from dps.estimators.predict.tables import TableRows
from dps.models import TableSpec
from dps.models.factorization import FactorizationMachine
from dps.optimizers import Adagrad, AdamW, Optimizer
from dps.optimizers.averaged import base_of
from dps.optimizers.names import get_optimizer
from dps.training.plan.batches import touches_little
from dps.training.state import TrainState, check_unchanged

if TYPE_CHECKING:
    import pandas as pd

    from dps._typing import Activation, Auto, ClassificationLoss, RegressionLoss
    from dps.training.job import Job

#: Adagrad's initial accumulator, the least value for float32, and its learning rate.
_ACCUMULATOR, _SMALLEST, _RATE = 1e-6, 1e-37, 0.4
#: AdamW's learning rate.
_RATE_OF_ADAMW = 0.05
#: Decay of weights over an epoch's steps together, and the bound for one step. A constant decay per
#: step would be too strong in long epochs ("How to set AdamW's weight decay as you scale model and
#: dataset size", Wang and Aitchison, 2024): rare categories would be forgotten between their rows.
_DECAY, _MOST_DECAY = 24.0, 0.1
#: Initial size of elements of factors.
_START = 0.1


@dataclass(frozen=True, eq=False)
class _Machine(FittedModel):
    """A fitted machine with a growing table; see `TableRaw`."""

    @property
    def table(self) -> TableRows | None:
        """Rows of a machine's growing table, or None."""
        held, width = self.model.inputs.held, self.model.key_width
        if held is None:
            return None
        return held, self.params[: len(held) * width].reshape(-1, width)

    def with_rows(self, parts: Sequence[TableRows]) -> _Machine:
        """Return the machine with these table rows only."""
        behind = self.params[self.model.layout.offsets["intercept"] :]
        held = np.concatenate([ids for ids, _ in parts])
        return _Machine(*self.model.holding(held, [rows for _, rows in parts], behind))

    def needed(self, X: Any) -> NDArray[np.int64]:
        """Return ids, ascending, that include all ids of a block."""
        columns = X.indices if hasattr(X, "indices") else np.arange(X.shape[1])
        return self.model.inputs.touched(columns)


_FACTORS = """
n_factors : int, default=16
    Number of factors of each column of the encoded rows.
hidden_layer_sizes : tuple of int, default=()
    Units of layers on top of the factors, which are summed over each field. With layers it is
    DeepFM.
"""

_FM = """
activation : {"relu", "silu", "tanh", "logistic", "identity"}, default="relu"
    Of `hidden_layer_sizes`.
alpha : float or "auto", default="auto"
    Strength of the L2 penalty: ``alpha / 2 * |w|**2`` is added to the mean loss of a row. With
    AdamW "auto" is 0, and the weight decay is 24 / (steps of an epoch), at most 0.1. With other
    optimizers it is 1 / (sum of sample weights), in a regression times the slope of the loss at a
    deviation of y. If there are 100 rows or more, and more than a tenth as many columns, held-out
    rows may choose another strength, as for linear models.
max_embeddings : int or None, default=None
    If None, the table has a row for each column and for each knot of a number. A number makes rows
    when they are first touched, and is the room for them: about 1.5 times as many as will come.
    They lie on the shards, and no replica holds all. This needs sparse rows or a dataframe, and
    ``mode="sync"``, "async" or "hybrid".
min_count : int, default=1
    With `max_embeddings`, updates of an epoch that must touch an id before it gets a row.
expire_after : int or None, default=None
    With `max_embeddings`, epochs without a touch after which a row is dropped.
fields : (n_features,) int array or None, default=None
    The field of each column of an array or a sparse matrix, for layers. None makes each column of a
    dataframe, or of up to 64 columns of an array, a field, and sums all others in one.
normalize : bool or "auto", default="auto"
    If True, rows are scaled to one length, so that long texts count as much as short ones. "auto"
    is True for a classification of sparse rows with more than 256 columns, if these are no encoded
    dataframe.
optimizer : str or Optimizer, default="auto"
    One of "auto", <optimizers>.
    "auto" is Adagrad, and with layers AdamW with ``beta2=0.95``, unless batches touch a small part
    of a large table, for which Adagrad has sparse steps.
average : bool or "auto", default="auto"
    If True, the parameters are an exponential mean over the last two epochs. "auto" is True unless
    batches touch a small part of a large table.
max_iter : int or "auto", default="auto"
    Maximal number of epochs. "auto" makes about 2,500 updates, in 12 to 100 epochs; half as many
    with neither layers nor averaging.
tol : float or None, default=0.0
    An epoch that lowers the monitored loss by less than this share of the loss of the best constant
    counts as bad.
n_iter_no_change : int or "auto", default="auto"
    Number of bad epochs in a row that ends the fit. "auto" is a third of `max_iter`, at least 5.
"""

_MACHINE = """
alpha_ : float
    Strength of the penalty; where `alpha` is "auto" with AdamW, the weight decay.
alpha_path_ : array of shape (n, 3)
    Where it was looked for: strengths that were tried, the loss on held-out rows of each, and zero.
factors_ : array of shape (n_rows, n_factors)
    A row for each column of the encoded rows. A number has one for each of its knots, and is linear
    in between. `embeddings` has their names.
factor_weights_ : array of shape (n_outputs, n_factors)
    Weights of the products of factors for each output; ones for a single output.
"""


@dataclass(eq=False, repr=False, kw_only=True)
class _Factorization(Planned):
    """The common part of the two estimators."""

    n_factors: int = field(default=16, kw_only=False)
    hidden_layer_sizes: int | Sequence[int] = field(default=(), kw_only=False)
    activation: Activation = "relu"
    max_embeddings: int | None = None
    min_count: int = 1
    expire_after: int | None = None
    fields: Sequence[int] | NDArray[np.integer] | None = None
    normalize: bool | Auto = "auto"
    average: bool | Auto = "auto"

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n_factors": [Interval(Integral, 1, None, closed="left")],
        "max_embeddings": [Interval(Integral, 1, None, closed="left"), None],
        "min_count": [Interval(Integral, 1, None, closed="left")],
        "expire_after": [Interval(Integral, 1, None, closed="left"), None],
        "fields": ["array-like", None],
        "normalize": ["boolean", StrOptions({"auto"})],
        "average": ["boolean", StrOptions({"auto"})],
    }

    def _raw(self) -> _Machine:
        return _Machine(self._model, self._params)

    def _warm(self) -> TrainState | None:
        start = super()._warm()
        carry: TrainState | None = getattr(self, "_carry", None)
        # `_model` has the rows that have been created.
        if carry is not None and carry.ids is not None:
            return replace(carry, state=None, optimizer=None)
        return start

    def _check(self, request: Request) -> None:
        """Check that the loss has a kernel and that parameters agree."""
        super()._check(request)
        check_known(self.optimizer, "auto")
        if self.max_embeddings is not None:
            self._check_table(request)
        for name, given in ("min_count", self.min_count > 1), ("expire_after", self.expire_after):
            if self.max_embeddings is None and given:
                raise ValueError(f"{name} has no effect without max_embeddings: give that, too")
        planned_schedule(rate_of(self), self._rate(self._optimizer(False, 1.0)), 1)

    def _check_table(self, request: Request) -> None:
        refused = f"max_embeddings={self.max_embeddings} is not possible with"
        if not request.mode.shards_hold_parameters:
            raise ValueError(
                f"{refused} mode={self.mode!r}, in which each replica holds all rows: use "
                "mode='sync', 'async' or 'hybrid'"
            )
        if self.average is True:
            raise ValueError(f"{refused} average=True, a mean of all rows")
        native = None if self.optimizer == "auto" else get_optimizer(self.optimizer).native
        if self.optimizer != "auto" and (native is None or not native.lazy):
            raise ValueError(
                f"{refused} optimizer={self.optimizer!r}, which updates all rows: use 'adagrad', "
                "'momentum', 'sgd' or Adam(lazy=True)"
            )

    def _plan(self, survey: Survey) -> Job:
        """Train by Adagrad, or with layers by AdamW; average the parameters of the last epochs."""
        summary = survey.summary
        if survey.start is not None and survey.start.model is not None:
            survey.start = machine_goes_on(survey.start, summary.points)
        start, plan = survey.start, EpochPlan.of(self, survey)
        outputs = choose_outputs(survey)
        model = self._machine(survey, outputs)
        # Lazy steps by keys exist for Adagrad without averaging, which needs all rows of the table.
        few = model.table is not None or touches_little(summary, model.layout.size, plan.batch)
        optimizer = self._optimizer(few, outputs.slope)
        average = not few if self.average == "auto" else self.average
        if average:
            optimizer = plan.averaged(optimizer)
        elif self.max_iter == "auto" and not survey.partial and not model.hidden:
            # The learning rate must become small before the model overfits.
            plan = replace(plan, epochs=plan.epochs // 2)
        before = None if start is None else start.optimizer
        if before is not None and self.optimizer == self.average == "auto":
            optimizer = before
        initial = None
        if start is None:
            initial = model.initial(np.random.default_rng(survey.seed), _START)
        of_a_row = outputs.slope * survey.targets.scale / survey.rows_so_far
        rows = survey.rows_so_far if survey.partial else plan.rows
        decay = min(_MOST_DECAY, _DECAY * plan.batch / rows)
        optimizer, l2 = regularized(survey, optimizer, decay, of_a_row, summary.n_features)
        schedule = plan.schedule(survey, self._rate(optimizer))
        return survey.job(
            model,
            optimizer,
            schedule,
            params=initial,
            l2=l2,
            stopping=plan.stopping(survey.tol, 5),
            batch_size=plan.batch,
        )

    def _optimizer(self, few: bool, slope: float) -> Optimizer:
        if self.optimizer != "auto":
            return get_optimizer(self.optimizer)
        if hidden_units(self.hidden_layer_sizes) and not few:
            return adamw(slope)
        return Adagrad(initial_accumulator=max(_ACCUMULATOR * slope**2, _SMALLEST))

    def _rate(self, optimizer: Optimizer) -> float:
        base = base_of(optimizer)
        if isinstance(base, AdamW):
            return _RATE_OF_ADAMW
        return _RATE if self.optimizer == "auto" else float(base.default_schedule.rate)

    def _machine(self, survey: Survey, outputs: Outputs) -> FactorizationMachine:
        before = None if survey.start is None else survey.start.model
        hidden, n_outputs = hidden_units(self.hidden_layer_sizes), survey.n_outputs
        if before is not None:
            rows = None if before.table is None else before.table.rows
            check_unchanged(
                {
                    "hidden_layer_sizes": (before.hidden, hidden),
                    "n_factors": (before.n_factors, int(self.n_factors)),
                    "the number of outputs": (before.n_outputs, n_outputs),
                    "the number of features": (
                        before.inputs.n_features, survey.summary.n_features,
                    ),
                    "max_embeddings": (rows, self.max_embeddings),
                }
            )  # fmt: skip
            inputs, dtype = before.inputs, before.dtype
        else:
            inputs = inputs_of(self, survey)
            dtype = dtype_of(survey.summary, inputs.knots, survey.targets.units)
        table = None
        if self.max_embeddings is not None:
            table = TableSpec(
                int(self.max_embeddings), n_outputs + int(self.n_factors), zeros=n_outputs,
                scale=_START * 3**0.5,  # a uniform distribution with the variance of a normal one
                min_count=int(self.min_count), expire=int(self.expire_after or 0),
            )  # fmt: skip
        return FactorizationMachine(
            inputs, int(self.n_factors), hidden, n_outputs, outputs.loss, self.activation,
            float(self.dropout), dtype, outputs.shift, outputs.scale, table,
        )  # fmt: skip

    def _fitted(self, model: FactorizationMachine, params: NDArray[np.floating]) -> dict[str, Any]:
        """Weights and factors as in the formula; see `DistributedEstimator._fitted`."""
        found = model.factors(params)
        coef = found["weights"]
        if not self._classification and model.n_outputs == 1:
            coef = coef[0]
        return {
            "coef_": coef,
            "intercept_": found["intercept"],
            "factors_": found["factors"],
            "factor_weights_": found["mix"],
        }

    def to_onnx(self) -> Any:
        """The machine as ONNX, from the columns of an array or a dataframe on.

        It needs onnx, and skl2onnx for encoded dataframes. An array is one input "X" (n,
        n_features); each column of a dataframe is an input (n, 1) with its name: numbers as
        float32, categories as text or int64. Outputs have skl2onnx's names: "label" and
        "probabilities" of a classifier, or "scores" if the loss has no probabilities; else
        "variable".

        Returns
        -------
        onnx.ModelProto

        Raises
        ------
        ValueError
            ONNX lacks a feature of the encoder, or the table is too long for dense rows.
        """
        check_is_fitted(self)
        from dps.estimators.export.onnx import onnx_machine

        try:
            return onnx_machine(self)
        except ModuleNotFoundError as error:
            raise ImportError("to_onnx needs onnx: pip install onnx skl2onnx") from error

    def embeddings(self) -> pd.DataFrame:
        """Weights and factors by what they stand for.

        Returns
        -------
        pandas.DataFrame
            Columns are ``weight`` (for several outputs ``weight_`` with the class or number of the
            output), then ``factor_0`` and so on. The index is (field, category) for encoded
            dataframes, in which a number has a row for each knot; (feature, knot) for arrays of
            numbers; column names for wide sparse rows.

        Examples
        --------
        >>> import pandas as pd
        >>> from dps import FMRegressor
        >>> frame = pd.DataFrame({"who": ["ann", "bob"] * 50, "what": ["tea"] * 50 + ["ale"] * 50})
        >>> model = FMRegressor(n_factors=2, random_state=0).fit(frame, frame.index % 2 * 1.0)
        >>> model.embeddings().index.tolist()
        [('who', 'ann'), ('who', 'bob'), ('what', 'ale'), ('what', 'tea')]
        >>> model.embeddings().columns.tolist()
        ['weight', 'factor_0', 'factor_1']
        """
        check_is_fitted(self)
        import pandas as pd

        coef = np.atleast_2d(self.coef_)
        names = ["weight"]
        if len(coef) > 1:
            of = self.classes_ if self._classification else range(len(coef))
            names = [f"weight_{each}" for each in of]
        names += [f"factor_{number}" for number in range(self.factors_.shape[1])]
        values = np.column_stack([coef.T, self.factors_])
        return pd.DataFrame(values, row_names(self, self._model.inputs), names)


@estimator(model=FactorizationMachine, factors=_FACTORS, fm=_FM, machine=_MACHINE)
class FMClassifier(_Factorization, Classifier):
    """A factorization machine for labels, trained where its data lies.

    For categories with many values, such as users and what they chose: each has a weight and a
    vector of factors, and each pair the product of its factors ("Factorization Machines", Rendle,
    2010). With `hidden_layer_sizes` layers learn from the factors too ("DeepFM", Guo et al., 2017).
    Defaults need no tuning, and numbers no scaling: they go in by their place among quantiles.

    Parameters
    ----------
    <factors>
    <label_loss>
    class_weight : dict, "balanced" or None, default=None
    <fm>
    <planned>
    <rows>
    <places>

    Attributes
    ----------
    coef_ : array of shape (1, n_rows) or (n_classes, n_rows)
        Weights, of the same rows as `factors_`.
    intercept_ : array of shape (1,) or (n_classes,)
    classes_ : array of shape (n_classes,)
    <machine>
    <attributes>

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dps import FMClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> bool(FMClassifier(random_state=0).fit(X, y).score(X, y) > 0.9)
    True
    """

    loss: ClassificationLoss = "log_loss"


@estimator(model=FactorizationMachine, factors=_FACTORS, fm=_FM, machine=_MACHINE)
class FMRegressor(_Factorization, Regressor):
    """A factorization machine for numbers, trained where its data lies.

    As :class:`FMClassifier`. It depends on neither the unit nor the offset of y; several targets
    count alike, as in :class:`MLPRegressor`.

    Parameters
    ----------
    <factors>
    <number_loss>
    <fm>
    <planned>
    <rows>
    <places>

    Attributes
    ----------
    coef_ : array of shape (n_rows,), or (n_outputs, n_rows) if y has several columns
        Weights, of the same rows as `factors_`.
    intercept_ : array of shape (1,) or (n_outputs,)
    <machine>
    <attributes>

    Examples
    --------
    >>> import numpy as np
    >>> from dps import FMRegressor
    >>> X = np.random.default_rng(0).uniform(-1, 1, size=(1000, 2))
    >>> y = X[:, 0] * X[:, 1]
    >>> bool(FMRegressor(random_state=0).fit(X, y).score(X, y) > 0.8)
    True
    """

    loss: RegressionLoss = "squared_error"
