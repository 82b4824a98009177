"""Factorization machines on rows of categories and numbers, with or without layers above them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dps._checks import count, floats
from dps._kernels.factorization import FactorizationGradient
from dps._kernels.layers import ACTIVATIONS
from dps.losses import Loss
from dps.models.base import Rows
from dps.models.layout import Layout, TableSpec, Tensor
from dps.models.native import NativeModel
from dps.models.network import TINY

#: Gains, which make some tensors learn faster or slower at the same rate: of factors without
#: layers, of factors with layers, which use them unchanged, and of biases.
_FACTOR_GAIN, _DEEP_FACTOR_GAIN, _BIAS_GAIN = 0.5, 0.25, 0.1
#: Largest number of table rows, for 32-bit numbers.
_MOST_ROWS = (1 << 31) - 1


@dataclass(frozen=True, eq=False)
class FactorInputs:
    """The mapping from columns to rows of the table."""

    n_features: int
    # (n_features,) number of a numeric column, or -1 for a column whose values are used as they
    # are; None: all of these.
    places: NDArray[Any] | None = None
    # Knots of each number, ascending, at least one; weights and factors are linear between them.
    knots: tuple[Any, ...] = ()
    fields: NDArray[Any] | None = (
        None  # (n_features,) the field of each column, from 0; None: one field
    )
    gain: float = 1.0  # factor for all values
    normalised: bool = False  # whether each row is scaled to a length equal to the gain
    # (n,) ids of the rows in use, ascending, if rows are created on first use; a row of zeros after
    # them stands for all others. None: all.
    held: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        n = count(self.n_features, "n_features", 1)
        for each in self.knots:
            floats(each, "knots", max(1, np.size(each)))
            if (np.diff(each) <= 0).any():
                raise ValueError("knots are not ascending")
        for name in ("places", "fields"):
            array = getattr(self, name)
            if array is not None and (array.dtype != np.int32 or array.shape != (n,)):
                raise ValueError(f"{name} is of {array.dtype} and {array.shape}, not int32, ({n},)")
        if self.places is not None:
            given = np.sort(self.places[self.places != -1])
            if not np.array_equal(given, np.arange(len(self.knots))):
                raise ValueError("places are not those of each number once")
        elif self.knots:
            raise ValueError("there are knots, and no numbers")
        if self.fields is not None and not (self.fields.min() >= 0 and self.fields.max() < n):
            raise ValueError(f"fields hold a number that is not from 0 to {n - 1}")
        if not 0 < self.gain < np.inf:
            raise ValueError(f"gain is {self.gain!r}, and must be above 0")
        held = self.held
        if held is not None:
            below = held.ndim == 1 and held.dtype == np.int64 and (held < self.n_rows).all()
            if not below or (held[:1] < 0).any() or (np.diff(held) <= 0).any():
                raise ValueError(f"held are not rows among {self.n_rows}, ascending")

    @property
    def n_fields(self) -> int:
        """Number of fields."""
        return 1 if self.fields is None else int(self.fields.max(initial=0)) + 1

    @property
    def rows_of_columns(self) -> Any:
        """Numbers of table rows of each column, (n_features,)."""
        counts = np.ones(self.n_features, np.int64)
        if self.places is not None:
            number = self.places >= 0
            counts[number] = np.array([len(each) for each in self.knots])[self.places[number]]
        return counts

    @property
    def first_rows(self) -> Any:
        """The first row of each column, (n_features,)."""
        return np.cumsum(self.rows_of_columns) - self.rows_of_columns

    @property
    def n_rows(self) -> int:
        """Rows of the table."""
        extra = sum(len(each) - 1 for each in self.knots)
        return self.n_features + extra

    def touched(self, columns: Any) -> Any:
        """Return rows of the table, ascending, that include all rows that some columns need."""
        if self.places is None:
            return np.unique(columns).astype(np.int64)
        counts, first = self.rows_of_columns, self.first_rows
        columns = np.union1d(columns, self.numbers)
        spans = [np.arange(first[c], first[c] + counts[c]) for c in columns[counts[columns] > 1]]
        return np.sort(np.concatenate([first[columns[counts[columns] == 1]], *spans]))

    @property
    def numbers(self) -> Any:
        """Numeric columns in the order of their knots."""
        if self.places is None:
            return np.zeros(0, np.int64)
        columns = np.flatnonzero(self.places >= 0)
        return columns[np.argsort(self.places[columns])]


@dataclass(frozen=True, eq=False)
class _Layers:
    """Sizes and offsets of layers; offsets count from the end of the table."""

    sizes: Any
    weights: Any
    biases: Any
    gains: Any
    activation: str
    dropout: float
    bias_gain: float

    @property
    def first(self) -> int:
        return int(self.weights[0])


@dataclass(frozen=True, eq=False)
class _Shape:
    """The kernel's description; see `FactorizationMachine` and factorization.pxd."""

    n_features: int
    n_rows: int
    n_held: int
    held: Any
    tabled: bool
    n_outputs: int
    n_factors: int
    n_fields: int
    places: Any
    rows: Any
    fields: Any
    bins: Any
    firsts: Any
    knots: Any
    steepness: Any
    shift: Any
    scale: Any
    mix_at: int
    factor_gain: float
    gain: float
    normalised: bool
    layers: _Layers | None
    size: int


class FactorizationMachine(NativeModel[FactorizationGradient]):
    """A factorization machine under a loss; ``_kernels/factorization.pyx`` says what it computes.

    hidden: units of layers above the factors; none: there are no layers.
    activation: {"relu", "silu", "tanh", "logistic", "identity"}.
    dropout: share of the hidden units that a training row does without.
    dtype: float32 or float64.
    output_shift, output_scale: (n_outputs,) arrays, raw outputs are ``shift + scale * outputs``, so
        that outputs vary by about one.
    table: where rows come when they are touched: `loss_gradient` and `raw` are not possible then,
        only steps by keys. `compact` makes a machine of the rows that have come.

    Examples
    --------
    >>> from dps.losses import SquaredError
    >>> from dps.models.base import DenseRows
    >>> inputs = FactorInputs(n_features=3)
    >>> machine = FactorizationMachine(inputs, 4, (), 1, SquaredError(), output_shift=[5.0])
    >>> machine.layout.size, machine.key_width
    (20, 5)
    >>> machine.raw(machine.initial(), DenseRows(np.eye(3))).ravel()
    array([5., 5., 5.])
    """

    def __init__(  # noqa: PLR0913 - hyper-parameters
        self,
        inputs: FactorInputs,
        n_factors: int,
        hidden: tuple[int, ...],
        n_outputs: int,
        loss: Loss,
        activation: str = "relu",
        dropout: float = 0.0,
        dtype: Any = np.float64,
        output_shift: Any = None,
        output_scale: Any = None,
        table: TableSpec | None = None,
    ) -> None:
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"The 'activation' parameter must be a str among {sorted(ACTIVATIONS)}. "
                f"Got {activation!r} instead."
            )
        if loss.native is None:
            raise ValueError(
                f"a factorization machine needs a loss with a kernel, and {loss!r} has none"
            )
        if inputs.n_rows > _MOST_ROWS:
            raise ValueError(
                f"a table of {inputs.n_rows} rows is too long: at most {_MOST_ROWS} can be numbered"
            )
        self._set_outputs(hidden, n_outputs, dropout, dtype, output_shift, output_scale)
        self.inputs = inputs
        self.n_factors = count(n_factors, "n_factors", 1)
        self.loss = loss
        self.activation = activation
        self.table = table
        tensors = [
            Tensor("table", (self.n_held, self.key_width), True),
            Tensor("intercept", (n_outputs,), False),
        ]
        if n_outputs > 1:
            tensors.append(Tensor("mix", (n_outputs, n_factors), False))
        for number, shape in enumerate(pairwise(self.sizes)):
            tensors.append(Tensor(f"weights_{number}", shape, True))
            tensors.append(Tensor(f"biases_{number}", shape[1:], False))
        rest = -sum(tensor.size for tensor in tensors[1:]) % self.key_width
        if rest:  # parameters after the table must also fill whole rows
            tensors.append(Tensor("spare", (rest,), False))
        self.layout = Layout(tuple(tensors), table)

    @property
    def n_held(self) -> int:
        """Rows that the table has room for."""
        if self.table is not None:
            return self.table.rows
        held = self.inputs.held
        return self.inputs.n_rows if held is None else len(held) + 1

    @property
    def n_features(self) -> int:
        """Columns of the rows."""
        return self.inputs.n_features

    @property
    def by_blas(self) -> bool:
        """True if its gradient consists mostly of matrix products."""
        return bool(self.hidden)

    @property
    def key_width(self) -> int:
        """Elements of a row of the table: a weight for each output, then the factors."""
        return self.n_outputs + self.n_factors

    @property
    def sizes(self) -> tuple[int, ...]:
        """Units of the layers, from inputs to outputs; empty without layers."""
        if not self.hidden:
            return ()
        return (self.inputs.n_fields * self.n_factors, *self.hidden, self.n_outputs)

    @property
    def factor_gain(self) -> float:
        """Ratio of a factor to its element in the table."""
        return _DEEP_FACTOR_GAIN if self.hidden else _FACTOR_GAIN

    @property
    def layers(self) -> _Layers | None:
        """Description of the layers, or None."""
        if not self.hidden:
            return None
        numbers, at = range(len(self.sizes) - 1), self.layout.offsets
        return _Layers(
            sizes=self.sizes,
            weights=[at[f"weights_{number}"] - at["intercept"] for number in numbers],
            biases=[at[f"biases_{number}"] - at["intercept"] for number in numbers],
            gains=[size**-0.5 for size in self.sizes[:-1]],
            activation=self.activation,
            dropout=self.dropout,
            bias_gain=_BIAS_GAIN,
        )

    def _make_kernel(self) -> FactorizationGradient:
        assert self.loss.native is not None
        single = self.dtype == np.float32
        return FactorizationGradient(self._shape(), self.loss.native, single=single)

    def _shape(self) -> _Shape:
        inputs, at, layers = self.inputs, self.layout.offsets, self.layers
        knots = [np.asarray(each, np.float64) for each in inputs.knots]
        gaps = [np.diff(each, append=np.inf) for each in knots]
        fields = None
        if layers is not None and inputs.fields is not None:
            fields = np.repeat(inputs.fields, inputs.rows_of_columns)
        return _Shape(
            n_features=inputs.n_features,
            n_rows=inputs.n_rows,
            n_held=self.n_held,
            held=inputs.held,
            tabled=self.table is not None,
            n_outputs=self.n_outputs,
            n_factors=self.n_factors,
            n_fields=1 if fields is None else inputs.n_fields,
            places=inputs.places,
            rows=None if inputs.places is None else inputs.first_rows,
            fields=fields,
            bins=np.cumsum([0, *map(len, knots)]),
            firsts=inputs.first_rows[inputs.numbers],
            knots=np.concatenate([*knots, []]),
            steepness=np.concatenate([*(1 / np.where(g > TINY, g, np.inf) for g in gaps), []]),
            shift=self.output_shift,
            scale=self.output_scale,
            mix_at=at.get("mix", at["intercept"]),
            factor_gain=self.factor_gain,
            gain=inputs.gain,
            normalised=inputs.normalised,
            layers=layers,
            size=self.layout.size,
        )

    def initial(self, rng: Any = None, start: float = 1.0) -> Any:
        """Return random factors and weights of layers, and zeros elsewhere, see `Model.initial`."""
        rng = np.random.default_rng(0) if rng is None else rng
        layout = self.layout.with_rows(0)
        params = np.zeros(layout.size, self.dtype)
        views = layout.views(params)
        if self.table is None:
            factors = views["table"][:, self.n_outputs :]
            factors[:] = rng.standard_normal(factors.shape, np.float32)
            factors *= start
        if "mix" in views:
            views["mix"][:] = rng.standard_normal(views["mix"].shape)
        for number in range(len(self.sizes) - 2):
            weights = views[f"weights_{number}"]
            weights[:] = rng.standard_normal(weights.shape)
        return params

    def loss_gradient(
        self,
        params: Any,
        X: Rows,
        y: Any,
        weight: Any,
        out: Any,
        rng: Any = None,
    ) -> float:
        """Add the gradient to ``out`` and return the sum of losses, see `Model.loss_gradient`."""
        if self.table is not None:
            raise ValueError(
                "the rows of this table come when they are touched: take steps by keys"
            )
        return super().loss_gradient(params, X, y, weight, out, rng)

    def compact(self, params: Any, ids: Any) -> tuple[Self, Any]:
        """Return the machine of the rows in use, and its parameters.

        params: ndarray of shape (n,), of the rows in use and of the elements after the table.
        ids: ndarray of int64 of shape (2, rows); the first row has the id of each row, ascending.
        """
        table, behind = np.split(params, [ids.shape[1] * self.key_width])
        return self.holding(ids[0], [table], behind)

    def holding(self, held: Any, rows: Sequence[Any], behind: Any) -> tuple[Self, Any]:
        """Return the machine of some rows, and its parameters; all other rows are zero.

        held: ndarray of int64 of shape (n,), ids, ascending.
        rows: sequence of ndarrays with n rows in all, in order.
        behind: ndarray, the parameters after the table.
        """
        nothing = np.zeros(self.key_width, behind.dtype)
        other = type(self)(
            replace(self.inputs, held=held), self.n_factors, self.hidden, self.n_outputs,
            self.loss, self.activation, self.dropout, self.dtype, self.output_shift,
            self.output_scale,
        )  # fmt: skip
        return other, np.concatenate([*(part.ravel() for part in rows), nothing, behind])

    def factors(self, params: Any) -> dict[str, Any]:
        """Return weights and factors in a form without gains and scales.

        Returns `intercept` (n_outputs,), `weights` (n_outputs, n_rows), `factors` (n_rows,
            n_factors), and `mix` (n_outputs, n_factors), by which each output weighs products of
            factors.
        """
        views, many = self.layout.views(params), self.n_outputs
        table, scale = views["table"], np.asarray(self.output_scale)
        if self.inputs.held is not None:
            table = table[:-1]
        factors = self.factor_gain * self.inputs.gain * table[:, many:]
        mix = scale[:, None] * views["mix"] if many > 1 else np.ones((1, self.n_factors))
        found = {
            "intercept": self.output_shift + scale * views["intercept"],
            "weights": scale[:, None] * self.inputs.gain * table[:, :many].T,
            "factors": factors if many > 1 else np.sqrt(scale) * factors,
            "mix": mix,
        }
        return {name: np.ascontiguousarray(value, self.dtype) for name, value in found.items()}
