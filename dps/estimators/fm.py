"""Factorization machines, and with layers above the factors DeepFM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from dps.data.blocks import features_of
from dps.estimators.base import DistributedEstimator
from dps.estimators.docs import ATTRIBUTES, PLACES, ROWS, documented
from dps.estimators.factor_names import row_names
from dps.estimators.factorization_family import FactorizationFamily
from dps.estimators.lookups import Part
from dps.estimators.tasks import Classifier, Regressor
from dps.models import FactorizationMachine
from dps.optimizers import Optimizer
from dps.optimizers.schedules import Schedule
from dps.training.state import TrainState

__all__ = ["FMClassifier", "FMRegressor"]


@dataclass(frozen=True, eq=False)
class _Raw:
    """Raw outputs of a machine; with layers those of float64 in float64, as of networks."""

    machine: FactorizationMachine
    params: NDArray[np.floating]  # (n,)

    @property
    def n_features(self) -> int:
        return self.machine.inputs.n_features

    @property
    def dtype(self) -> Any:
        return self.machine.dtype

    @property
    def table(self) -> Part | None:
        """Of a machine whose rows came when they were touched, see `TableRaw`."""
        held, width = self.machine.inputs.held, self.machine.key_width
        if held is None:
            return None
        return held, self.params[: len(held) * width].reshape(-1, width)

    def with_rows(self, parts: Sequence[Part]) -> _Raw:
        """The machine with these rows alone, see `TableRaw`."""
        behind = self.params[self.machine.layout.offsets["intercept"] :]
        held = np.concatenate([ids for ids, _ in parts])
        return _Raw(*self.machine.holding(held, [rows for _, rows in parts], behind))

    def needed(self, X: Any) -> NDArray[np.int64]:
        """Ids, ascending, among which are all that a block touches, see `TableRaw`."""
        columns = X.indices if hasattr(X, "indices") else np.arange(X.shape[1])
        ids: NDArray[np.int64] = self.machine.inputs.touched(columns)
        return ids

    def __call__(self, X: Any) -> NDArray[np.floating]:
        dtype = np.dtype("f4" if X.dtype == np.float32 else "f8")
        rows = features_of(X, dtype).rows(0, X.shape[0], None)
        machine = self.machine.with_dtype(dtype)
        raw: NDArray[np.floating] = machine.raw(self.params.astype(dtype, copy=False), rows)
        return raw


_FM = """
n_factors : int, default=16
    Length of the vector that each column of the encoded rows has.
hidden_layer_sizes : tuple of int, default=()
    Units of layers that are fed with the factors, summed over each field: with any it is DeepFM.
activation : {"relu", "silu", "tanh", "logistic", "identity"}, default="relu"
alpha : float or "auto", default="auto"
    Strength of the L2 penalty, of AdamW its weight decay. "auto" is for AdamW 24 by the steps of an
    epoch, at most 0.1, else 1 / (sum of sample weights), in a regression times the slope of the
    loss at a deviation of y.
dropout : float, default=0.15
    Share of the units of each hidden layer that a training row does without.
max_rows : int or None, default=None
    None: the table has a row for each column, and for each knot of a number. Else rows come when
    they are first touched, and this is the room for them, some 1.5 times as many as there will be;
    they lie on the shards, and no replica holds all. It needs sparse rows or a dataframe, and
    ``mode="sync"`` or "async".
min_count : int, default=1
    With `max_rows`, updates of an epoch in which an id has to be touched before it has a row.
expire : int or None, default=None
    With `max_rows`, epochs after which a row is given up that nobody has touched.
fields : (n_features,) int array or None, default=None
    The field of each column of an array or a sparse matrix, for layers. None: of dataframes their
    columns; up to 64 columns of numbers each, else all are summed in one field.
normalize : bool or "auto", default="auto"
    Whether rows are scaled to one length, so that long texts count as short ones. "auto" does so
    for a classification of sparse rows of more than 256 columns that are no encoded dataframe.
optimizer : str or Optimizer, default="auto"
    "auto" is Adagrad; where there are layers AdamW with ``beta2=0.95``, unless batches touch little
    of many rows, as lazy steps are of Adagrad.
learning_rate : float, Schedule or str, default="auto"
    A number is a constant rate; names are "cosine", "constant", "invscaling" and "step". "auto" is
    a cosine over `max_iter` epochs after a short warm-up; in `partial_fit` constant.
average : bool or "auto", default="auto"
    Whether the parameters are those of an exponential mean over the last two epochs. "auto" is so
    unless batches touch little of many rows.
max_iter : int or "auto", default="auto"
    Epochs; "auto" makes about 2,500 updates, in 12 to 100 epochs, or with neither layers nor a mean
    of parameters half as many.
tol : float or None, default=0.0
    An epoch that does not lower the monitored loss by more than this counts as bad.
early_stopping : bool or "auto", default="auto"
    Whether rows are held out; then the parameters are those of the epoch in which their loss was
    lowest. "auto" holds out where there are 100 rows or more.
warm_start : bool, default=False
    Whether `fit` goes on from the machine that is there.
n_iter_no_change : int or "auto", default="auto"
    Bad epochs in a row that end the fit; "auto" is a third of `max_iter`, at least 5.
"""

_MACHINE = """
factors_ : array of shape (n_rows, n_factors)
    A row for each column of the encoded rows; of a number one for each of its knots, between which
    factors and weights are linear. `embeddings` has their names.
factor_weights_ : array of shape (n_outputs, n_factors)
    How each output weighs products of factors; ones for a single output.
"""

_shared = documented(fm=_FM, rows=ROWS, places=PLACES, machine=_MACHINE, attributes=ATTRIBUTES)


@dataclass(eq=False, repr=False, kw_only=True)
class _Machine(DistributedEstimator):
    """What the two estimators share."""

    n_factors: int = field(default=16, kw_only=False)
    hidden_layer_sizes: Any = field(default=(), kw_only=False)
    activation: str = "relu"
    alpha: Any = "auto"
    dropout: float = 0.15
    max_rows: int | None = None
    min_count: int = 1
    expire: int | None = None
    fields: Any = None
    normalize: Any = "auto"
    optimizer: Any = "auto"
    learning_rate: Any = "auto"
    average: Any = "auto"
    max_iter: Any = "auto"
    tol: float | None = 0.0
    early_stopping: Any = "auto"
    validation_fraction: float = 0.1
    n_iter_no_change: Any = "auto"

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n_factors": [Interval(Integral, 1, None, closed="left")],
        "hidden_layer_sizes": ["array-like", Interval(Integral, 1, None, closed="left")],
        "activation": [StrOptions({"relu", "silu", "tanh", "logistic", "identity"})],
        "alpha": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
        "dropout": [Interval(Real, 0, 1, closed="left")],
        "max_rows": [Interval(Integral, 1, None, closed="left"), None],
        "min_count": [Interval(Integral, 1, None, closed="left")],
        "expire": [Interval(Integral, 1, None, closed="left"), None],
        "fields": ["array-like", None],
        "normalize": ["boolean", StrOptions({"auto"})],
        "optimizer": [str, Optimizer],
        "learning_rate": [Interval(Real, 0, None, closed="neither"), str, Schedule],
        "average": ["boolean", StrOptions({"auto"})],
        "max_iter": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "early_stopping": ["boolean", StrOptions({"auto"})],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
    }

    def _family(self) -> FactorizationFamily:
        return FactorizationFamily(self)

    def _raw(self) -> _Raw:
        return _Raw(self._machine, self._params)

    def _warm(self) -> TrainState | None:
        if not hasattr(self, "_machine"):
            return None
        carry: TrainState = self._carry
        if carry.ids is not None:  # of which the machine has the rows that have come
            return replace(carry, state=None, optimizer=None)
        return TrainState(self._params, self._machine)

    def to_onnx(self) -> Any:
        """The machine as ONNX, from the columns of an array or a dataframe on.

        It needs onnx, and skl2onnx where a dataframe is encoded. An array is one input "X" (n,
        n_features); of a dataframe each column is an input (n, 1) by its name: numbers as float32,
        categories as text, or int64. Outputs are as skl2onnx names them: of a classifier "label"
        and "probabilities", or "scores" where the loss has none; else "variable".

        Returns
        -------
        onnx.ModelProto

        Raises
        ------
        ValueError
            The encoder does what ONNX has not, or the table is too long for dense rows.
        """
        check_is_fitted(self)
        from dps.estimators.onnx_machine import onnx_machine

        return onnx_machine(self)

    def embeddings(self) -> Any:
        """Weights and factors by what they stand for.

        Returns
        -------
        pandas.DataFrame
            Columns are ``weight``, of several outputs ``weight_`` and the class or the number of
            the output, then ``factor_0`` and so on. The index is (field, category) for encoded
            dataframes, where a number has a row for each of its knots; (feature, knot) for arrays
            of numbers; names of columns for wide sparse rows.

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
        return pd.DataFrame(values, row_names(self, self._machine.inputs), names)


@_shared
@dataclass(eq=False, repr=False, kw_only=True)
class FMClassifier(_Machine, Classifier):
    """A factorization machine for labels, trained where its data lies.

    For categories with many values, such as users and what they chose: each has a weight and a
    vector of factors, and each pair the product of its factors ("Factorization Machines", Rendle,
    2010). With `hidden_layer_sizes` layers learn from the factors too ("DeepFM", Guo et al., 2017).
    Defaults need no tuning, and numbers no scaling: they go in by their place among quantiles.

    Parameters
    ----------
    loss : {"log_loss", "hinge", "squared_hinge", "modified_huber"} or Loss, default="log_loss"
    class_weight : dict, "balanced" or None, default=None
    <fm>
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

    loss: Any = "log_loss"


@_shared
@dataclass(eq=False, repr=False, kw_only=True)
class FMRegressor(_Machine, Regressor):
    """A factorization machine for numbers, trained where its data lies.

    As :class:`FMClassifier`.

    Parameters
    ----------
    loss : str or Loss, default="squared_error"
        "squared_error", "huber", "epsilon_insensitive", "quantile" (the median;
        ``dps.losses.Quantile(0.9)`` another), or "poisson" (counts) and "gamma" (amounts), whose
        mean is the exponential of the machine's output.
    <fm>
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

    loss: Any = "squared_error"

    def _several(self) -> int | None:
        return len(self.coef_) if self.coef_.ndim == 2 else None
