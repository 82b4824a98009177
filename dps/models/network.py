"""Multilayer networks on rows of numbers and other columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csr_array

from dps._checks import count, floats
from dps._kernels.layers import ACTIVATIONS
from dps._kernels.network import NetworkGradient
from dps.losses import Loss
from dps.models.base import CSRRows, DenseRows, Rows
from dps.models.layout import Layout, Tensor
from dps.models.native import NativeModel

#: Bound of scaled numbers: beyond it only their bins differ.
RANGE = 3.0
#: A width that counts as zero, since its inverse would overflow.
TINY = 1e-300
#: Gains, which make some tensors learn faster or slower at the same rate.
_BIAS_GAIN, _SCALE_GAIN = 0.1, 6.0
#: Initial size of the weights of other columns, which stays as noise for a rare word.
_PLAIN = 0.1


@dataclass(frozen=True, eq=False)
class Inputs:
    """The input layer of a network."""

    places: Any  # (n_features,) number of a numeric column, or -1 - p for the p-th other column
    centre: Any  # (n_numbers,) numbers are scaled to ``(x - centre) * spread``
    spread: Any
    edges: tuple[Any, ...]  # ascending edges of each number's bins; at least one bin
    width: int  # width of a number's embedding; 0: none
    plain_square: float  # mean over rows of the sum of squares of other columns

    def __post_init__(self) -> None:
        numbers = len(self.edges)
        floats(self.centre, "centre", numbers)
        floats(self.spread, "spread", numbers)
        for each in self.edges:
            floats(each, "edges", max(2, np.size(each)))
            if (np.diff(each) <= 0).any() and not (len(each) == 2 and each[0] == each[1]):
                raise ValueError("edges are not ascending")
        # Other columns from -1 down, numbers from 0 up.
        wanted, places = np.r_[numbers - np.size(self.places) : numbers], np.asarray(self.places)
        if places.dtype != np.int64 or not np.array_equal(np.sort(places, axis=None), wanted):
            raise ValueError("places are not those of each number and each plain column once")
        count(self.width, "width")
        if not 0 <= self.plain_square < np.inf:
            raise ValueError(f"plain_square is {self.plain_square!r}, and must not be negative")

    @property
    def n_numbers(self) -> int:
        """Number of numeric columns."""
        return len(self.centre)

    @property
    def n_plain(self) -> int:
        """Number of other columns, which are used unscaled."""
        return len(self.places) - self.n_numbers

    @property
    def n_dense(self) -> int:
        """Scaled numbers and their embeddings."""
        return self.n_numbers * (1 + self.width)

    @cached_property
    def bins(self) -> Any:
        """Starts of the bins of each number, (n_numbers + 1,)."""
        if not self.width:
            return np.zeros(self.n_numbers + 1, np.int64)
        return np.cumsum([0, *(len(edges) - 1 for edges in self.edges)])


@dataclass(frozen=True, eq=False)
class _Shape:
    """The kernel's description; see `Network` and network.pxd."""

    places: Any
    sizes: Any
    weights: Any
    biases: Any
    bins: Any
    gains: Any
    centre: Any
    spread: Any
    edges: Any
    steepness: Any
    output_scale: Any
    output_shift: Any
    activation: str
    dropout: float
    range: float
    bias_gain: float
    scale_gain: float
    width: int
    embedding_at: int
    scale_at: int
    size: int


class Network(NativeModel[NetworkGradient]):
    """A network under a loss; see ``_kernels/network.pyx`` for what it computes.

    hidden: units of the hidden layers.
    activation: {"relu", "silu", "tanh", "logistic", "identity"}.
    dropout: share of the hidden units that a training row does without.
    dtype: float32 or float64.
    output_shift, output_scale: (n_outputs,) arrays, raw outputs are ``shift + scale * outputs``, so
        that outputs vary by about one.

    Examples
    --------
    >>> from dps.losses import SquaredError
    >>> from dps.models.base import DenseRows
    >>> numbers = Inputs(np.arange(2), np.zeros(2), np.ones(2), (np.arange(3.0),) * 2, 4, 0.0)
    >>> network = Network(numbers, (8,), 1, SquaredError(), output_shift=[5.0])
    >>> network.layout.size, network.raw(network.initial(), DenseRows(np.eye(2))).ravel()
    (123, array([5., 5.]))
    """

    by_blas: ClassVar[bool] = True

    def __init__(  # noqa: PLR0913 - hyper-parameters
        self,
        inputs: Inputs,
        hidden: tuple[int, ...],
        n_outputs: int,
        loss: Loss,
        activation: str = "relu",
        dropout: float = 0.0,
        dtype: Any = np.float64,
        output_shift: Any = None,
        output_scale: Any = None,
    ) -> None:
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"The 'activation' parameter must be a str among {sorted(ACTIVATIONS)}. "
                f"Got {activation!r} instead."
            )
        if loss.native is None:
            raise ValueError(f"a network needs a loss with a kernel, and {loss!r} has none")
        self._set_outputs(hidden, n_outputs, dropout, dtype, output_shift, output_scale)
        self.inputs = inputs
        self.loss = loss
        self.activation = activation
        self.sizes = (inputs.n_plain + inputs.n_dense, *hidden, n_outputs)
        tensors = []
        if inputs.n_numbers:
            if inputs.width:
                tensors.append(Tensor("embedding", (int(inputs.bins[-1]), inputs.width), True))
            tensors.append(Tensor("scale", (inputs.n_dense,), True))
        for number, shape in enumerate(zip(self.sizes[:-1], self.sizes[1:], strict=True)):
            tensors.append(Tensor(f"weights_{number}", shape, True))
            tensors.append(Tensor(f"biases_{number}", shape[1:], False))
        self.layout = Layout(tuple(tensors))

    @property
    def n_features(self) -> int:
        """Columns of the rows."""
        return len(self.inputs.places)

    @property
    def gains(self) -> list[float]:
        """Factor of each layer's weights: one over the length of its input."""
        length = self.inputs.n_dense + self.inputs.plain_square
        return [max(length, 1.0) ** -0.5, *(size**-0.5 for size in self.sizes[1:-1])]

    def _make_kernel(self) -> NetworkGradient:
        assert self.loss.native is not None
        single = self.dtype == np.float32
        return NetworkGradient(self._shape(), self.loss.native, single=single)

    def _shape(self) -> _Shape:
        inputs, at = self.inputs, self.layout.offsets
        layers = range(len(self.sizes) - 1)
        edges = [np.asarray(each) for each in inputs.edges] if inputs.width else []
        steepness = [1 / np.where(np.diff(each) > TINY, np.diff(each), np.inf) for each in edges]
        none = [np.zeros(0)]
        return _Shape(
            places=inputs.places,
            sizes=self.sizes,
            weights=[at[f"weights_{layer}"] for layer in layers],
            biases=[at[f"biases_{layer}"] for layer in layers],
            bins=inputs.bins,
            gains=self.gains,
            centre=inputs.centre,
            spread=inputs.spread,
            edges=np.concatenate(edges or [np.zeros(inputs.n_numbers)]),
            steepness=np.concatenate(steepness or none),
            output_scale=self.output_scale,
            output_shift=self.output_shift,
            activation=self.activation,
            dropout=self.dropout,
            range=RANGE,
            bias_gain=_BIAS_GAIN,
            scale_gain=_SCALE_GAIN,
            width=inputs.width,
            embedding_at=at.get("embedding", 0),
            scale_at=at.get("scale", 0),
            size=self.layout.size,
        )

    def initial(self, rng: Any = None) -> Any:
        """Return random weights, and an output layer of zeros, see `Model.initial`."""
        rng = np.random.default_rng(0) if rng is None else rng
        params = np.zeros(self.layout.size, self.dtype)
        views, last = self.layout.views(params), len(self.sizes) - 2
        for number in range(last):
            views[f"weights_{number}"][:] = rng.standard_normal(views[f"weights_{number}"].shape)
        if last:
            views["weights_0"][: self.inputs.n_plain] *= _PLAIN
        if "scale" in views:
            views["scale"][:] = 1 / _SCALE_GAIN
        if "embedding" in views:
            per_bin = np.repeat(np.diff(self.inputs.bins), np.diff(self.inputs.bins))
            drawn = rng.standard_normal(views["embedding"].shape)
            views["embedding"][:] = drawn / np.sqrt(per_bin)[:, None]
        return params

    def raw(self, params: Any, X: Rows) -> Any:
        """Return the raw outputs, see `Model.raw`; zeros of other columns are skipped."""
        if isinstance(X, DenseRows) and self.inputs.n_plain:
            rows = csr_array(X.values)
            X = CSRRows(rows.data, rows.indices, rows.indptr, self.n_features, X.order)
        return super().raw(params, X)

    def layers(self, params: Any) -> tuple[list[Any], list[Any]]:
        """Return weights and biases in a form without gains and scales.

        Returns list of (inputs, outputs) arrays; the first layer's inputs are other columns, scaled
            numbers, then embeddings.
        Returns list of (outputs,) arrays.
        """
        views, gains, first = self.layout.views(params), self.gains, self.inputs.n_plain
        coefs = [gain * views[f"weights_{layer}"] for layer, gain in enumerate(gains)]
        intercepts = [_BIAS_GAIN * views[f"biases_{layer}"] for layer in range(len(gains))]
        if "scale" in views:
            coefs[0][first:] *= _SCALE_GAIN * views["scale"][:, None]
        coefs[-1] = coefs[-1] * self.output_scale
        intercepts[-1] = self.output_shift + self.output_scale * intercepts[-1]
        as_is = [np.asarray(each, self.dtype) for each in (*coefs, *intercepts)]
        return as_is[: len(coefs)], as_is[len(coefs) :]
