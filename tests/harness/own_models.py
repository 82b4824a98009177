"""Models as users write them, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
import scipy.special

from dps.models import Batch, Tensor


class Softmax:
    """Several classes by one matrix."""

    def __init__(self, n_features: int, n_classes: int) -> None:
        self.layout: Any = {"coef": (n_features, n_classes), "bias": (n_classes,)}

    def init(self, rng):
        return {"coef": 0.0, "bias": 0.0}

    def inputs(self, params, batch):
        return batch.X

    def raw(self, params, batch):
        return self.inputs(params, batch) @ params["coef"] + params["bias"]

    def loss_gradient(self, params, batch, out):
        raw = self.raw(params, batch)
        powers = np.exp(raw - raw.max(axis=1, keepdims=True))
        slope = powers / powers.sum(axis=1, keepdims=True)
        rows = np.arange(batch.rows)
        losses = -np.log(slope[rows, batch.y])
        slope[rows, batch.y] -= 1
        slope = batch.weighted(slope)
        out["coef"] += self.inputs(params, batch).T @ slope
        out["bias"] += slope.sum(axis=0)
        return batch.weighted(losses).sum()


class Centred(Softmax):
    """The same of features less their running mean, which is no parameter."""

    def __init__(self, n_features: int, n_classes: int) -> None:
        super().__init__(n_features, n_classes)
        self.layout["mean"] = Tensor("mean", (n_features,), penalised=False, trained=False)
        self.layout["batches"] = Tensor("batches", (), penalised=False, trained=False)

    def init(self, rng):
        return {**super().init(rng), "mean": 0.0, "batches": 0.0}

    def inputs(self, params, batch):
        return batch.X - params["mean"]

    def loss_gradient(self, params, batch, out, buffers):
        buffers["batches"] += 1
        buffers["mean"] += (batch.X.mean(axis=0) - buffers["mean"]) / 10
        return super().loss_gradient(params, batch, out)


class Noisy(Softmax):
    """Half of the features are dropped, by chance."""

    draws = True

    def loss_gradient(self, params, batch, out, rng):
        kept = rng.random(batch.X.shape) < 0.5
        thin = Batch(batch.X * kept, batch.y, batch.weight, batch.rows)
        return super().loss_gradient(params, thin, out)


class Wide(Softmax):
    takes = "sparse"

    def loss_gradient(self, params, batch, out):
        assert scipy.sparse.issparse(batch.X)
        return super().loss_gradient(params, batch, out)


class Line:
    """A regression with several outputs, in logarithms."""

    def __init__(self, n_features: int, n_outputs: int) -> None:
        self.layout = {"coef": (n_features, n_outputs)}

    def init(self, rng):
        return {"coef": 0.0}

    def raw(self, params, batch):
        return batch.X @ params["coef"]

    def mean(self, raw):
        return 2 * raw

    def loss_gradient(self, params, batch, out):
        residual = 2 * self.raw(params, batch) - batch.y.reshape(batch.rows, -1)
        out["coef"] += 2 * batch.X.T @ batch.weighted(residual)
        return (batch.weighted(residual) * residual).sum() / 2


class ByName:
    """Numbers by a slope each, categories by a value each; counts by a slope for all."""

    takes = "columns"

    def __init__(self, sizes: dict[str, int], n_outputs: int) -> None:
        self.sizes = sizes
        self.layout = {name: (max(1, size),) for name, size in sizes.items()}

    def init(self, rng):
        return dict.fromkeys(self.sizes, 0.0)

    def _parts(self, params, batch):
        assert list(batch.X) == list(self.sizes)
        for name, column in batch.X.items():
            assert column.dtype.kind == ("i" if self.sizes[name] else "f")
            yield name, params[name][column] if self.sizes[name] else params[name] * column

    def raw(self, params, batch):
        return sum(part for _, part in self._parts(params, batch))

    def loss_gradient(self, params, batch, out):
        residual = self.raw(params, batch) - batch.y
        slope = batch.weighted(residual)
        for name, column in batch.X.items():
            if self.sizes[name]:
                np.add.at(out[name], column, slope)
            else:
                out[name] += slope @ column
        return (slope * residual).sum() / 2


class Ordinal:
    """Ordered classes by cuts of one score: proportional odds."""

    def __init__(self, n_features: int, n_classes: int) -> None:
        self.layout = {"coef": (n_features,), "first": (1,), "gaps": (n_classes - 2,)}

    def init(self, rng):
        return {"coef": 0.0, "first": -1.0, "gaps": 0.0}

    def _below(self, params, batch):
        """The probability of each class and those below, with that of none in front."""
        gaps = np.exp(params["gaps"])
        cuts = np.cumsum(np.concatenate([params["first"], gaps]))
        cuts = np.concatenate([[-np.inf], cuts, [np.inf]])
        return scipy.special.expit(cuts - (batch.X @ params["coef"])[:, None]), gaps

    def raw(self, params, batch):
        below, _ = self._below(params, batch)
        return np.log(np.maximum(np.diff(below, axis=1), 1e-300))

    def loss_gradient(self, params, batch, out):
        (below, gaps), rows = self._below(params, batch), np.arange(batch.rows)
        likelihood = np.maximum(below[rows, batch.y + 1] - below[rows, batch.y], 1e-300)
        slopes = below * (1 - below) / likelihood[:, None]
        upper = batch.weighted(slopes[rows, batch.y + 1])
        lower = batch.weighted(slopes[rows, batch.y])
        out["coef"] += batch.X.T @ (upper - lower)
        cuts = np.zeros(len(gaps) + 3)
        np.add.at(cuts, batch.y + 1, -upper)
        np.add.at(cuts, batch.y, lower)
        after = np.cumsum(cuts[1:-1][::-1])[::-1]  # a cut moves with all those before it
        out["first"] += after[0]
        out["gaps"] += gaps * after[1:]
        return batch.weighted(-np.log(likelihood)).sum()
