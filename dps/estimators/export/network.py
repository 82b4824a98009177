"""A trained network as scikit-learn's: its layers behind one that scales and embeds numbers.

A network uses a number through a piecewise linear function, clipped and embedded by bins. Such a
function is a sum of ramps, ``max(x - knot, 0)`` above the column's median and ``max(knot - x, 0)``
below it, so that ramps are small for most values. A hidden layer of ReLU units computes the ramps,
and the weights of the next layer combine them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dps.estimators.export.sklearn import after_encoder, filled
from dps.losses import LogLoss, Loss
from dps.losses.names import LOSSES
from dps.losses.regression import LogLinkLoss
from dps.models.network import RANGE, Inputs, Network

if TYPE_CHECKING:
    from dps.estimators.base.estimator import DistributedEstimator

#: Largest number of elements of the layer of ramps: 1 GiB.
_MOST_ELEMENTS = 1 << 27

_Floats = NDArray[np.float64]


def plain_network(estimator: DistributedEstimator) -> Any:
    """Return the scikit-learn estimator of a network; see `_Perceptron.to_sklearn`."""
    network: Network = estimator._model.with_dtype(np.float64)
    coefs, intercepts = network.layers(np.asarray(estimator._params, np.float64))
    inputs, activation = network.inputs, network.activation
    if activation == "silu":
        raise ValueError("scikit-learn's networks have no activation='silu': use 'relu'")
    before: list[Any] = []
    if inputs.n_numbers:
        mixed = inputs.n_plain > 0
        if (inputs.width or mixed) and activation != "relu":
            what = "columns of categories beside numbers" if mixed else "embedded numbers"
            raise ValueError(
                f"activation={activation!r} with {what} is no network of scikit-learn: use "
                "activation='relu', or numbers alone with embedding_size=0"
            )
        if not mixed:
            before = _scalers(estimator, inputs)
        if inputs.width or mixed:
            ramps = _Ramps(inputs, network, np.asarray(estimator._params, np.float64), coefs[0])
            coefs = [ramps.before(scaled=not mixed), ramps.weights, *coefs[1:]]
            behind = intercepts[0] + ramps.offset
            intercepts = [ramps.thresholds(scaled=not mixed), behind, *intercepts[1:]]
        else:
            known = inputs.spread > 0  # columns that were constant have no effect
            coefs[0] = (coefs[0] * known[:, None])[inputs.places]
    model = _estimator(estimator, activation, coefs, intercepts, named=not before)
    return after_encoder(estimator, *before, model)


def _scalers(estimator: DistributedEstimator, inputs: Inputs) -> list[Any]:
    """Return steps that scale numbers by their spread, and clip them where nothing changes."""
    from sklearn.preprocessing import MinMaxScaler, StandardScaler

    spread = inputs.spread[inputs.places]
    scale = np.where(spread > 0, 1 / np.where(spread > 0, spread, 1.0), 1.0)
    centre = np.asarray(inputs.centre, np.float64)[inputs.places]
    n = len(centre)
    most = float(max([RANGE, *(abs(knots[[0, -1]]).max() for knots in _knots(inputs))]))
    bounds = np.full(n, most)
    return [
        filled(
            StandardScaler(), estimator, mean_=centre, scale_=scale, var_=scale**2,
            n_samples_seen_=1,
        ),
        filled(
            MinMaxScaler((-most, most), clip=True), estimator, named=False, scale_=np.ones(n),
            min_=np.zeros(n), data_min_=-bounds, data_max_=bounds, data_range_=2 * bounds,
            n_samples_seen_=1,
        ),
    ]  # fmt: skip


def _edges(inputs: Inputs, number: int) -> _Floats:
    """Return a number's edges in units of its spread."""
    edges = np.asarray(inputs.edges[number], np.float64)
    return (edges - inputs.centre[number]) * inputs.spread[number]


def _knots(inputs: Inputs) -> list[_Floats]:
    """Return the knots of each number's function; arbitrary ones for a constant."""
    ends = np.array([-RANGE, RANGE])
    if not inputs.width:
        return [ends] * inputs.n_numbers
    return [np.unique(np.r_[ends, _edges(inputs, j)]) for j in range(inputs.n_numbers)]


class _Ramps:
    """The layer of ramps, and the weights of the next layer.

    params: (n,) array.
    first: (inputs, units) array, weights of the network's first layer: for plain columns, numbers
        and their embeddings.
    weights: (ramps, units) array.
    offset: (units,) array that is added to the next layer's biases.
    """

    def __init__(self, inputs: Inputs, network: Network, params: _Floats, first: _Floats) -> None:
        self._inputs = inputs
        columns = np.flatnonzero(inputs.places >= 0)
        column_of = columns[np.argsort(inputs.places[columns])]
        plain = np.flatnonzero(inputs.places < 0)
        plain = plain[np.argsort(-1 - inputs.places[plain])]
        embedding = network.layout.views(params).get("embedding")
        # Plain columns are never negative, and use the ramp from zero.
        found = [(int(column), 1.0, 0.0) for column in plain]
        weights, self.offset = [first[: inputs.n_plain]], np.zeros(first.shape[1])
        for number, knots in enumerate(_knots(inputs)):
            if not inputs.spread[number]:
                continue
            values = _function(inputs, number, knots, first, embedding)
            middle = int(np.abs(knots).argmin())
            slopes = np.diff(values, axis=0) / np.diff(knots)[:, None]
            slopes = np.pad(slopes, ((1, 1), (0, 0)))
            bends = np.diff(slopes, axis=0)
            weights += [-slopes[middle][None], bends[:middle]]
            weights += [slopes[middle + 1][None], bends[middle + 1 :]]
            self.offset += values[middle]
            column = int(column_of[number])
            left, right = knots[[middle, *range(middle)]], knots[middle:]
            found += [(column, -1.0, float(knot)) for knot in left]
            found += [(column, 1.0, float(knot)) for knot in right]
        self.weights: _Floats = np.concatenate(weights)
        self._columns = np.array([column for column, _, _ in found], np.int64)
        self._signs = np.array([sign for _, sign, _ in found], np.float64)
        self._knots = np.array([knot for _, _, knot in found], np.float64)
        size = len(inputs.places) * len(found)
        if size > _MOST_ELEMENTS:
            raise ValueError(
                f"X has {len(inputs.places):,} columns, categories and numbers, and scikit-learn's "
                f"network would have {size:,} weights in a layer before the first, up to "
                f"{_MOST_ELEMENTS:,} are sensible: encode with FrameEncoder(n_buckets=...)"
            )

    def before(self, scaled: bool) -> _Floats:
        """Return the weights of the layer of ramps, for scaled or unscaled columns."""
        weights = np.zeros((len(self._inputs.places), len(self._signs)))
        at = self._columns, np.arange(len(self._signs))
        weights[at] = self._signs if scaled else self._signs * self._of("spread", 1.0)
        return weights

    def thresholds(self, scaled: bool) -> _Floats:
        """Return its biases."""
        shift = 0.0 if scaled else self._of("centre", 0.0) * self._of("spread", 1.0)
        return -self._signs * (self._knots + shift)

    def _of(self, name: str, otherwise: float) -> _Floats:
        """Return a value for the number of each ramp."""
        places = self._inputs.places[self._columns]
        known = np.r_[np.asarray(getattr(self._inputs, name), np.float64), otherwise]
        return known[np.where(places >= 0, places, len(known) - 1)]


def _function(
    inputs: Inputs, number: int, knots: _Floats, first: _Floats, embedding: _Floats | None
) -> _Floats:
    """Return a number's contribution to the units of the first layer, at its knots."""
    at = inputs.n_plain + number
    values: _Floats = np.clip(knots, -RANGE, RANGE)[:, None] * first[at]
    if embedding is not None:
        bins = embedding[inputs.bins[number] : inputs.bins[number + 1]]
        sums = np.vstack([np.zeros(inputs.width), np.cumsum(bins, axis=0)])
        edges = _edges(inputs, number)
        embedded = np.stack([np.interp(knots, edges, each) for each in sums.T], axis=1)
        start = inputs.n_plain + inputs.n_numbers + number * inputs.width
        values = values + embedded @ first[start : start + inputs.width]
    return values


def _estimator(
    estimator: DistributedEstimator,
    activation: str,
    coefs: list[Any],
    intercepts: list[Any],
    named: bool,
) -> Any:
    """Return scikit-learn's network with these layers."""
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.preprocessing import LabelBinarizer

    loss: Loss = estimator._loss()
    options = {
        "hidden_layer_sizes": tuple(len(biases) for biases in intercepts[:-1]),
        "activation": activation,
    }
    attributes: dict[str, Any] = {
        "coefs_": coefs,
        "intercepts_": intercepts,
        "n_layers_": len(coefs) + 1,
        "n_outputs_": len(intercepts[-1]),
        "out_activation_": estimator.out_activation_,
        "n_iter_": estimator.n_iter_,
        "t_": sum(epoch["rows"] for epoch in estimator.history_),
        "loss_": estimator.loss_,
        "loss_curve_": estimator.loss_curve_,
        "best_loss_": estimator.best_loss_,
    }
    if estimator._classification:
        if not isinstance(loss, LogLoss):
            raise ValueError(
                f"scikit-learn's networks have no loss={estimator.loss!r}: use loss='log_loss'"
            )
        attributes["classes_"] = estimator.classes_.copy()
        labels = estimator.classes_
        if estimator.multilabel_:  # scikit-learn's form of a y with a column per label
            labels = np.repeat([[0], [1]], len(labels), axis=1)
        attributes["_label_binarizer"] = LabelBinarizer().fit(labels)
        return filled(MLPClassifier(**options), estimator, named=named, **attributes)
    if type(loss) not in LOSSES.values():
        raise ValueError(f"scikit-learn's networks have no loss={estimator.loss!r}")
    model = MLPRegressor(**options)
    if isinstance(loss, LogLinkLoss):
        if "loss" not in model.get_params():
            raise ValueError(
                f"loss={estimator.loss!r} needs scikit-learn 1.7 or newer, whose MLPRegressor has "
                "loss='poisson'"
            )
        model.set_params(loss="poisson")
        attributes["out_activation_"] = "exp"
    return filled(model, estimator, named=named, **attributes)
