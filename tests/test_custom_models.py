"""Models that users have written in NumPy: what `check` finds, and training in every mode."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import dps
from dps import ModelClassifier, ModelRegressor
from dps.models import Tensor, check
from dps.modes import MODES


class Softmax:
    """Several classes by one matrix."""

    def __init__(self, n_features: int, n_classes: int) -> None:
        self.layout: Any = {"coef": (n_features, n_classes), "bias": (n_classes,)}

    def init(self, rng):
        return {"coef": 0.0, "bias": 0.0}

    def raw(self, params, batch):
        return batch.X @ params["coef"] + params["bias"]

    def loss_gradient(self, params, batch, out):
        raw = self.raw(params, batch)
        powers = np.exp(raw - raw.max(axis=1, keepdims=True))
        slope = powers / powers.sum(axis=1, keepdims=True)
        rows = np.arange(batch.rows)
        losses = -np.log(slope[rows, batch.y])
        slope[rows, batch.y] -= 1
        slope = batch.weighted(slope)
        out["coef"] += batch.X.T @ slope
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

    def raw(self, params, batch):
        return (batch.X - params["mean"]) @ params["coef"] + params["bias"]

    def loss_gradient(self, params, batch, out, buffers):
        buffers["batches"] += 1
        buffers["mean"] += (batch.X.mean(axis=0) - buffers["mean"]) / 10
        loss = super().loss_gradient(params, batch, out)
        out["coef"] -= np.outer(params["mean"], out["bias"])  # in which there is this batch alone
        return loss


class Noisy(Softmax):
    """Half of the features are dropped, by chance."""

    draws = True

    def loss_gradient(self, params, batch, out, rng):
        kept = rng.random(batch.X.shape) < 0.5
        thin = dps.models.Batch(batch.X * kept, batch.y, batch.weight, batch.rows)
        return super().loss_gradient(params, thin, out)


class Wide(Softmax):
    takes = "sparse"

    def loss_gradient(self, params, batch, out):
        assert scipy.sparse.issparse(batch.X)
        return super().loss_gradient(params, batch, out)


def example(n: int = 1200, features: int = 6) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(1.0, 1.0, size=(n, features)) * (rng.random((n, features)) < 0.7)
    raw = (X - 1) @ rng.normal(size=(features, 3))
    return X, np.array(["a", "b", "c"])[(raw + rng.gumbel(size=raw.shape)).argmax(axis=1)]


OPTIONS: dict[str, Any] = {
    "learning_rate": 0.05, "max_iter": 5, "tol": None, "batch_size": 64, "random_state": 0,
}  # fmt: skip


@pytest.mark.parametrize("kind", [Softmax, Noisy, Wide])
def test_good_models_pass(kind):
    X, y = example()
    for given in (X, scipy.sparse.csr_array(X)):
        check(kind(6, 3), given, y)
    check(kind(6, 2), X, y == "a")


class Assigns(Softmax):
    def loss_gradient(self, params, batch, out):
        loss = super().loss_gradient(params, batch, out)
        out["bias"][:] = 1.0
        return loss


class Replaces(Softmax):
    def loss_gradient(self, params, batch, out):
        out["bias"] = np.zeros(3)
        return 0.0


class Averages(Softmax):
    def loss_gradient(self, params, batch, out):
        return super().loss_gradient(params, batch, out) / batch.rows


class Unweighted(Softmax):
    def loss_gradient(self, params, batch, out):
        plain = dps.models.Batch(batch.X, batch.y, None, batch.rows)
        return super().loss_gradient(params, plain, out)


class Wrong(Softmax):
    def loss_gradient(self, params, batch, out):
        out["coef"][2, 1] += batch.weighted(np.ones(batch.rows)).sum()
        return super().loss_gradient(params, batch, out)


class Writes(Softmax):
    def raw(self, params, batch):
        params["bias"] += 1.0
        return super().raw(params, batch)


class Scales(Softmax):
    def raw(self, params, batch):
        values = batch.X.copy()
        values -= values.mean(axis=0, keepdims=True) if batch.rows else 0
        return values @ params["coef"]


class Chance(Softmax):
    def init(self, rng):
        return {"coef": np.random.default_rng().normal(size=(6, 3)), "bias": 0.0}


class Narrow(Softmax):
    def raw(self, params, batch):
        return super().raw(params, batch)[:, :2]

    def loss_gradient(self, params, batch, out):
        return 0.0


class Silent(Softmax):
    def loss_gradient(self, params, batch, out):
        super().loss_gradient(params, batch, out)


BAD = {
    Assigns: r"must add to `out`, and not set it: 'bias' at \[\d\] is",
    Averages: "the loss must be a sum over rows, not a mean",
    Unweighted: "the loss ignores `batch.weight`",
    Wrong: r"the gradient of 'coef' at \[2, 1\]: expected .* by finite differences .*, got",
    Writes: "writes into `params` or `batch`",
    Scales: "raw of the first row depends on what other rows",
    Chance: "init returns other values for the same random numbers",
    Narrow: "raw returns 2 outputs a row, and y asks for 3",
}


@pytest.mark.parametrize(("kind", "message"), BAD.items(), ids=lambda v: getattr(v, "__name__", ""))
def test_check_says_what_is_wrong(kind, message):
    X, y = example()
    with pytest.raises(ValueError, match=message):
        check(kind(6, 3), X, y, rows=40)


def test_mistakes_without_a_check_are_errors_as_well():
    X, y = example(100)
    for kind, message in ((Replaces, r"out\['bias'\] was assigned to"), (Silent, "returned None")):
        with pytest.raises(dps.errors.ReplicaError, match=message):
            ModelClassifier(kind, n_replicas=2, **OPTIONS).fit(X, y)
    with pytest.raises(TypeError, match="has no layout and no init"):
        ModelClassifier(object()).fit(X, y)
    bad = Softmax(6, 3)
    bad.layout = {"coef": (6, -3)}
    with pytest.raises(TypeError, match=r"has \(6, -3\) for 'coef'"):
        ModelClassifier(bad).fit(X, y)
    odd = Softmax(6, 3)
    odd.init = lambda rng: {"coef": np.zeros(2), "bias": 0.0}  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"returned 'coef' with the shape \(2,\)"):
        ModelClassifier(odd).fit(X, y)


@pytest.mark.parametrize("kind", [Softmax, Centred, Noisy, Wide])
def test_modes_that_wait_end_with_the_same_bits_and_async_near_them(kind):
    X, y = example()
    data = da.from_array(X, chunks=(170, 6)), da.from_array(y, chunks=170)

    def fit(mode: str, shards: int, given: Any = data) -> Any:
        options = {**OPTIONS, "mode": mode, "n_shards": shards, "n_replicas": 2}
        return ModelClassifier(kind, **options).fit(*given)

    first = fit("sync", 1)
    for mode, shards in (("sync", 3), ("allreduce", 1), ("allreduce", 2)):
        again = fit(mode, shards)
        assert again._params.tobytes() == first._params.tobytes()
        assert again.history_[-1]["loss"] == first.history_[-1]["loss"]
    apart = fit("async", 2)
    assert apart.loss_ == pytest.approx(first.loss_, rel=0.05)
    sparse = fit("sync", 1, (scipy.sparse.csr_array(X), y))
    assert sparse.score(X, y) == pytest.approx(first.score(X, y), abs=0.03)
    assert set(MODES) == {"sync", "async", "allreduce"}


def test_processes_end_with_the_bits_of_threads(client):
    X, y = example()
    chunked = [client.persist(da.from_array(a, chunks=(300, *a.shape[1:]))) for a in (X, y)]
    bits = {
        ModelClassifier(Centred, mode=mode, n_replicas=2, client=client, **OPTIONS)
        .fit(*chunked)
        ._params.tobytes()
        for mode in ("sync", "allreduce")
    }
    here = ModelClassifier(Centred, n_replicas=2, **OPTIONS)
    here.fit(*(da.from_array(a, chunks=(300, *a.shape[1:])) for a in (X, y)))
    assert len(bits) == 1
    assert np.allclose(np.frombuffer(*bits), here._params, atol=0.2)  # other rows in a batch


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n_replicas", [1, 2])
def test_buffers_are_those_of_all_batches(mode, n_replicas):
    X, y = example()
    model = ModelClassifier(Centred, mode=mode, n_replicas=n_replicas, **OPTIONS).fit(X, y)
    updates = model._carry.version
    lost = 0.05 * updates if mode == "async" and n_replicas > 1 else 0  # nobody waits for the other
    assert model.params_["batches"] == pytest.approx(updates, abs=lost)
    np.testing.assert_allclose(model.params_["mean"], X.mean(axis=0), atol=0.3)
    carried = model.partial_fit(X, y)
    assert carried.params_["batches"] == pytest.approx(updates * 6 / 5, abs=lost)


def test_the_epoch_that_is_kept_has_its_own_buffers():
    X, y = example(300)
    options = {**OPTIONS, "learning_rate": 1.0, "max_iter": 30, "n_iter_no_change": 3, "tol": 0.0}
    model = ModelClassifier(Centred, early_stopping=True, n_replicas=2, **options).fit(X, y)
    losses = [epoch["validation_loss"] for epoch in model.history_]
    best = int(np.argmin(losses)) + 1
    assert best < model.n_iter_
    assert model.params_["batches"] == model._carry.version  # updates behind the epoch


def test_weights_and_classes_count_as_rows_do():
    X, y = example(400)
    options = {**OPTIONS, "batch_size": 800, "shuffle": False}
    twice = ModelClassifier(Softmax, **options).fit(np.repeat(X, 2, 0), np.repeat(y, 2))
    heavy = ModelClassifier(Softmax, **options).fit(X, y, sample_weight=np.full(400, 2.0))
    np.testing.assert_allclose(twice._params, heavy._params, atol=1e-12)
    lifted = ModelClassifier(Softmax, class_weight={"a": 5.0}, **options).fit(X, y)
    assert (lifted.predict(X) == "a").sum() > (heavy.predict(X) == "a").sum()


def test_predictions_are_lazy_and_probabilities_those_of_the_outputs():
    X, y = example()
    model = ModelClassifier(Softmax, **OPTIONS).fit(X, y)
    raw = X @ model.params_["coef"] + model.params_["bias"]
    np.testing.assert_allclose(model.decision_function(X), raw)
    powers = np.exp(raw)
    np.testing.assert_allclose(
        model.predict_proba(X), powers / powers.sum(axis=1, keepdims=True), rtol=1e-6
    )
    lazy = model.predict(da.from_array(X, chunks=500))
    assert lazy.chunks == ((500, 500, 200),)
    assert (lazy.compute() == model.predict(X)).all()
    two = ModelClassifier(Softmax, **OPTIONS).fit(X, y == "a")
    raw = X @ two.params_["coef"] + two.params_["bias"]
    np.testing.assert_allclose(two.decision_function(X), raw[:, 1] - raw[:, 0])
    assert (two.predict(X) == two.predict_proba(X).argmax(axis=1)).all()


def test_searches_clones_and_warm_starts():
    X, y = example(300)
    rates = {"learning_rate": [1e-5, 0.05]}
    search = GridSearchCV(ModelClassifier(Softmax, **OPTIONS), rates, cv=2)
    assert search.fit(X, y).best_params_ == {"learning_rate": 0.05}
    model = ModelClassifier(Softmax(6, 3), warm_start=True, **OPTIONS).fit(X, y)
    once = model.loss_
    assert model.fit(X, y).loss_ < once
    assert not hasattr(clone(model), "params_")
    model.model = Softmax(6, 2)
    with pytest.raises(ValueError, match="other tensors now"):
        model.fit(X, y)


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


def test_regressions_of_several_outputs():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 4))
    Y = X @ rng.normal(size=(4, 2))
    check(Line(4, 2), X, Y)
    model = ModelRegressor(Line, **{**OPTIONS, "max_iter": 40}).fit(X, Y)
    assert model.predict(X).shape == (500, 2)
    assert model.score(X, Y) > 0.99
    one = ModelRegressor(Line, **{**OPTIONS, "max_iter": 40}).fit(X, Y[:, 0])
    assert one.predict(X).shape == (500,)
