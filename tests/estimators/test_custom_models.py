"""Models that users have written in NumPy: what `check` finds, and training in every mode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.optimize
import scipy.sparse
from cases import slow
from configure import configure, placed
from groups import MODES
from inside import carry_of, params_of
from own_models import ByName, Centred, Line, Noisy, Ordinal, Softmax, Wide
from sklearn.base import clone
from sklearn.metrics import log_loss, r2_score
from sklearn.model_selection import GridSearchCV

import dps
from dps import AllReduce, ModelClassifier, ModelRegressor, Sync
from dps.models import Batch, Layout, Tensor, check
from dps.optimizers import OPTIMIZERS, SGD, AdamW, Averaged
from dps.optimizers.update import Update
from dps.preprocessing import FrameEncoder


def example(n: int = 1200, features: int = 6) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(1.0, 1.0, size=(n, features)) * (rng.random((n, features)) < 0.7)
    raw = (X - 1) @ rng.normal(size=(features, 3))
    return X, np.array(["a", "b", "c"])[(raw + rng.gumbel(size=raw.shape)).argmax(axis=1)]


OPTIONS: dict[str, Any] = {
    "learning_rate": 0.05, "max_iter": 5, "tol": None, "batch_size": 64, "random_state": 0,
}  # fmt: skip


@pytest.mark.parametrize("kind", [Softmax, Centred, Noisy, Wide])
def test_good_models_pass(kind):
    X, y = example()
    for given in (X, scipy.sparse.csr_array(X)):
        check(kind(6, 3), given, y)
    check(kind(6, 2), X, y == "a")
    with pytest.raises(TypeError, match="give an instance of"):
        check(kind, X, y)


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
        check(kind(6, 3), X, y, n_samples=40)


def test_mistakes_without_a_check_are_errors_as_well():
    X, y = example(100)
    for kind, message in ((Replaces, r"out\['bias'\] was assigned to"), (Silent, "returned None")):
        with pytest.raises((TypeError, ValueError), match=message):
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


@pytest.mark.parametrize("kind", [Noisy, Wide, *slow(Softmax, Centred)])
def test_modes_that_wait_end_with_the_same_bits_and_async_near_them(kind):
    X, y = example()
    data = da.from_array(X, chunks=(170, 6)), da.from_array(y, chunks=170)

    def fit(mode: str, shards: int, given: Any = data) -> Any:
        options = {**OPTIONS, "mode": mode, "n_shards": shards, "n_replicas": 2}
        return ModelClassifier(kind, **placed(options)).fit(*given)

    first = fit("sync", 1)
    for mode, shards in (("sync", 3), ("allreduce", 2)):
        again = fit(mode, shards)
        assert params_of(again).tobytes() == params_of(first).tobytes()
        assert again.history_[-1]["loss"] == first.history_[-1]["loss"]
    apart = fit("async", 2)
    assert apart.loss_ == pytest.approx(first.loss_, rel=0.15)  # its start is 1.8 times as much
    sparse = fit("sync", 1, (scipy.sparse.csr_array(X), y))
    assert sparse.score(X, y) == pytest.approx(first.score(X, y), abs=0.03)
    assert set(MODES) == {"sync", "async", "allreduce"}


def test_processes_end_with_the_bits_of_threads(client):
    X, y = example()
    chunked = [client.persist(da.from_array(a, chunks=(300, *a.shape[1:]))) for a in (X, y)]
    bits = {
        ModelClassifier(
            Centred, mode=mode, n_replicas=2, client=client, **placed({**OPTIONS, "n_shards": 2})
        )
        .fit(*chunked)
        ._params.tobytes()
        for mode in ("sync", "allreduce", Sync(access="stream"))
    }
    here = ModelClassifier(Centred, n_replicas=2, **OPTIONS)
    here.fit(*(da.from_array(a, chunks=(300, *a.shape[1:])) for a in (X, y)))
    assert len(bits) == 1
    assert np.allclose(np.frombuffer(*bits), params_of(here), atol=0.2)  # other rows in a batch


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n_replicas", [1, 2])
def test_buffers_are_those_of_all_batches(mode, n_replicas):
    X, y = example()
    model = ModelClassifier(Centred, mode=mode, n_replicas=n_replicas, **OPTIONS).fit(X, y)
    updates = carry_of(model).version
    lost = 0.05 * updates if mode == "async" and n_replicas > 1 else 0  # no one waits for the other
    assert model.params_["batches"] == pytest.approx(updates, abs=lost)
    np.testing.assert_allclose(model.params_["mean"], X.mean(axis=0), atol=0.3)
    carried = model.partial_fit(X, y)
    assert carried.params_["batches"] == pytest.approx(updates * 6 / 5, abs=lost)


@dataclass(frozen=True)
class PlainSGD(SGD):
    """SGD in Python."""

    def update(self, params, grad, state, *, step, lr, l1, l2):
        params -= params.dtype.type(lr) * grad
        return bool(np.isfinite(params).all())


def test_buffers_are_no_affair_of_optimizers_or_of_the_way_that_gradients_take():
    X, y = example()
    options = {**OPTIONS, "n_replicas": 2, "optimizer": SGD(), "learning_rate": 0.5}
    first = ModelClassifier(Centred, **options).fit(X, y)
    for changed in (
        {"optimizer": PlainSGD()},
        {"optimizer": PlainSGD(), "mode": "allreduce"},
        {"mode": AllReduce(algorithm="ring")},
    ):
        model = ModelClassifier(Centred, **{**options, **changed}).fit(X, y)
        np.testing.assert_allclose(params_of(model), params_of(first), rtol=1e-10)
    for penalised in ({"alpha": 0.1}, {"optimizer": AdamW()}, {"optimizer": Averaged(SGD())}):
        for mode in ("sync", "allreduce"):
            model = ModelClassifier(Centred, **{**options, **penalised, "mode": mode}).fit(X, y)
            for name in ("mean", "batches"):
                np.testing.assert_array_equal(model.params_[name], first.params_[name])
            assert not np.allclose(model.params_["coef"], first.params_["coef"])


def test_what_is_not_trained_is_a_run_of_its_own():
    free, buffer = Tensor("a", (2,), False), Tensor("b", (3,), False, trained=False)
    layout = Layout((Tensor("w", (2, 2), True), free, buffer, Tensor("c", (), False)))
    assert layout.segments(0, 10) == [(0, 4, 1), (4, 6, 0), (6, 9, 2), (9, 10, 0)]
    trained = Layout((free, Tensor("b", (3,), False)))
    assert trained.digest != Layout((free, buffer)).digest
    with pytest.raises(ValueError, match="'x' is not trained, and so cannot be penalised"):
        Tensor("x", (1,), True, trained=False)
    params, grad = np.arange(10.0), np.ones(10)
    update = Update(SGD(), 0.0, 1.0, tuple(layout.segments(0, 10)))
    assert update.apply(params, grad[2:8], np.empty((0, 10)), 2, 8, step=1, lr=0.5)
    np.testing.assert_allclose(params, [0, 1, 1, 5 / 3, 3.5, 4.5, 5, 6, 8, 9])


def test_the_epoch_that_is_kept_has_its_own_buffers():
    X, y = example(300)
    options = {**OPTIONS, "learning_rate": 1.0, "max_iter": 30, "n_iter_no_change": 3, "tol": 0.0}
    model = ModelClassifier(Centred, early_stopping=True, n_replicas=2, **options).fit(X, y)
    losses = [epoch["validation_loss"] for epoch in model.history_]
    best = int(np.argmin(losses)) + 1
    assert best < model.n_iter_
    assert model.params_["batches"] == carry_of(model).version  # updates behind the epoch


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_trains_them(name):
    X, y = example()
    rate = {"sgd": 1.0, "momentum": 0.2}.get(name, 0.1)
    options = {**OPTIONS, "learning_rate": rate, "n_replicas": 2, "optimizer": name}
    first, other = (
        ModelClassifier(Centred, mode=mode, **options).fit(X, y) for mode in ("sync", "allreduce")
    )
    assert params_of(first).tobytes() == params_of(other).tobytes()
    assert first.score(X, y) > 0.65


def test_weights_and_classes_count_as_rows_do():
    X, y = example(400)
    options = {**OPTIONS, "batch_size": 800, "shuffle": False}
    twice = ModelClassifier(Softmax, **options).fit(np.repeat(X, 2, 0), np.repeat(y, 2))
    heavy = ModelClassifier(Softmax, **options).fit(X, y, sample_weight=np.full(400, 2.0))
    np.testing.assert_allclose(params_of(twice), params_of(heavy), atol=1e-12)
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
    with pytest.raises(ValueError, match="the list of the model's tensors was"):
        model.fit(X, y)


def frame_of(n: int = 600) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"area": rng.normal(size=n), "kind": rng.choice([*"abc"], n),
                          "rooms": pd.Categorical(rng.integers(1, 4, n))})  # fmt: skip
    value = frame.area * 2 + frame.kind.map({"a": 1.0, "b": -1.0, "c": 0.0})
    return frame, value + frame.rooms.astype(float)


def test_columns_come_by_name_with_codes_for_categories():
    frame, value = frame_of()
    options = {**OPTIONS, "max_iter": 40, "n_replicas": 2}
    model = ModelRegressor(ByName, **options).fit(frame, value)
    assert model.model_.sizes == {"area": 0, "kind": 4, "rooms": 4}  # one is for unknown ones
    np.testing.assert_allclose(model.params_["area"], 2, atol=0.02)
    kinds = model.params_["kind"]
    np.testing.assert_allclose(kinds[:3] - kinds[2], [1, -1, 0], atol=0.05)
    assert kinds[3] == 0  # never seen
    codes = {"area": frame.area, "kind": frame.kind.map({"a": 0, "b": 1, "c": 2})}
    check(ByName({"area": 0, "kind": 4}, 1), codes, value)
    lazy = dd.from_pandas(frame, npartitions=3)
    there = ModelRegressor(ByName, **options).fit(lazy, dd.from_pandas(value, npartitions=3))
    np.testing.assert_allclose(params_of(there), params_of(model), atol=0.1)
    again = model.predict(lazy[["rooms", "kind", "area"]])  # found by name, and lazy
    np.testing.assert_allclose(again.compute(), model.predict(frame))
    odd = frame.assign(kind="zzz")
    by_hand = model.predict(frame) - kinds[frame.kind.map({"a": 0, "b": 1, "c": 2})]
    np.testing.assert_allclose(model.predict(odd), by_hand)
    numbers = ModelRegressor(ByName, **options).fit(frame[["area"]], value)
    assert numbers.model_.sizes == {"area": 0}
    with pytest.raises(ValueError, match="set the attribute 'takes' of what makes the model"):
        ModelRegressor(lambda *_: ByName({"area": 0}, 1), **options).fit(frame[["area"]], value)


class MeanOfTokens:
    """A value per token, whose mean over a list is the output; and a slope of numbers."""

    takes = "columns"

    def __init__(self, sizes: dict[str, int], n_outputs: int) -> None:
        assert sizes == {"words": 65, "sizes": 0}
        self.layout = {"words": (65,), "sizes": (1,)}

    def init(self, rng):
        return {"words": 0.0, "sizes": 0.0}

    def raw(self, params, batch):
        words, sizes = batch.X["words"], batch.X["sizes"]
        assert words.values.dtype.kind == "i"
        assert not sizes.values[~sizes.mask].any()
        longest = max(1, words.lengths.max(initial=0))
        assert words.values.shape == words.mask.shape == (batch.rows, longest)
        mean = (params["words"][words.values] * words.mask).sum(axis=1)
        return mean / np.maximum(words.lengths, 1) + params["sizes"] * sizes.values.sum(axis=1)

    def loss_gradient(self, params, batch, out):
        words, sizes = batch.X["words"], batch.X["sizes"]
        residual = self.raw(params, batch) - batch.y
        slope = batch.weighted(residual)
        each = (slope / np.maximum(words.lengths, 1))[:, None] * words.mask
        np.add.at(out["words"], words.values, each)
        out["sizes"] += slope @ sizes.values.sum(axis=1)
        return (slope * residual).sum() / 2


@pytest.mark.parametrize("cache", ["memory", None])
def test_lists_come_padded(cache, tmp_path):
    rng = np.random.default_rng(0)
    n, value = 600, dict(zip("abcd", (1.0, -1.0, 2.0, 0.0), strict=True))
    words = [list(rng.choice([*"abcd"], rng.integers(0, 6))) for _ in range(n)]
    sizes = [list(np.round(rng.normal(size=rng.integers(1, 4)), 2)) for _ in range(n)]
    y = np.array([np.mean([value[w] for w in row]) if row else 0.0 for row in words])
    y += [3 * sum(row) for row in sizes]
    frame = pd.DataFrame({"words": words, "sizes": sizes})
    encoder = FrameEncoder(lists=8, n_buckets=64)
    options = {**OPTIONS, "encoder": encoder, "max_iter": 40, "n_replicas": 2}
    configure(cache=cache)
    with dask.config.set({"dataframe.convert-string": False}):
        lazy = dd.from_pandas(frame, npartitions=3)
        target = dd.from_pandas(pd.Series(y), npartitions=3)
    model = ModelRegressor(MeanOfTokens, **options).fit(lazy, target)
    assert model.score(frame, y) > 0.99
    np.testing.assert_allclose(model.predict(lazy).compute(), model.predict(frame))
    cut = frame.assign(words=[row * 9 for row in words])  # more than 8 do not count
    assert np.isfinite(model.predict(cut)).all()
    model.save(tmp_path / "model")
    again = dps.load(tmp_path / "model", model=MeanOfTokens)
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))
    for odd, held in ((1.0, "numbers"), ([1.0, 2.0], "lists of numbers")):
        bad = frame.assign(words=[odd] * n)
        with pytest.raises(ValueError, match=f"column 'words' of X holds {held}, and held lists"):
            model.predict(bad)


def test_a_saved_model_of_columns_finds_them_again(tmp_path):
    frame, value = frame_of(200)
    model = ModelRegressor(ByName, **OPTIONS).fit(frame, value)
    model.save(tmp_path / "model")
    again = dps.load(tmp_path / "model", model=ByName)
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))


def test_a_saved_model_is_given_again_and_carries_on(tmp_path):
    X, y = example(300)
    options = {**OPTIONS, "optimizer": "momentum"}
    model = ModelClassifier(Centred, n_replicas=2, **options).fit(X, y)
    model.save(tmp_path / "model")
    files = b"".join(path.read_bytes() for path in (tmp_path / "model").iterdir())
    assert b"pickle" not in files
    with pytest.raises(TypeError, match="which is code and not in the files: give model again"):
        dps.load(tmp_path / "model")
    with pytest.raises(TypeError, match=r"was saved without \['loss'\]"):
        dps.load(tmp_path / "model", model=Centred, loss=3)
    with pytest.raises(ValueError, match="model has other tensors"):
        dps.load(tmp_path / "model", model=Softmax)
    again = dps.load(tmp_path / "model", model=Centred)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.params_["batches"] == model.params_["batches"]
    assert again.partial_fit(X, y)._params.tobytes() == model.partial_fit(X, y)._params.tobytes()
    ModelClassifier(Softmax, alpha=0.5).save(tmp_path / "bare")
    assert dps.load(tmp_path / "bare", model=Softmax).alpha == 0.5


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


def test_other_outputs_than_the_targets_ask_for_are_an_error_of_the_fit():
    X, y = example(200)
    with pytest.raises(ValueError, match="5 outputs a row, and there are 3 classes"):
        ModelClassifier(Softmax(6, 5), **OPTIONS).fit(X, y)


def test_early_stopping_looks_at_the_log_loss_of_a_model_of_ones_own():
    X, y = example(600)
    model = ModelClassifier(
        Softmax, **{**OPTIONS, "early_stopping": True, "scoring": "neg_log_loss"}
    ).fit(X[:500], y[:500], X_val=X[500:], y_val=y[500:])
    found = [record["validation_score"] for record in model.history_]
    losses = [record["validation_loss"] for record in model.history_]
    np.testing.assert_allclose(found, -np.array(losses))


class Tempered(Softmax):
    """Its probabilities are less sure than the softmax."""

    def probabilities(self, raw):
        powers = np.exp(raw / 4 - (raw / 4).max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)


class Doubled(Line):
    """It predicts twice its raw outputs."""

    def mean(self, raw):
        return 2 * raw


def test_scores_take_a_models_own_probabilities_and_mean():
    X, y = example(600)
    options = {**OPTIONS, "early_stopping": True, "max_iter": 3}
    model = ModelClassifier(Tempered, **options, scoring="neg_log_loss")
    model.fit(X[:500], y[:500], X_val=X[500:], y_val=y[500:])
    best = max(record["validation_score"] for record in model.history_)
    assert best == pytest.approx(-log_loss(y[500:], model.predict_proba(X[500:])))
    numbers = X @ np.arange(6.0)
    line = ModelRegressor(Doubled, **options, scoring="r2")
    line.fit(X[:500], numbers[:500], X_val=X[500:], y_val=numbers[500:])
    best = max(record["validation_score"] for record in line.history_)
    assert best == pytest.approx(r2_score(numbers[500:], line.predict(X[500:])))


def ordered(n: int = 3000) -> tuple[Any, Any]:
    """Rows of the proportional odds model with the cuts -2, -0.5, 0.5 and 2."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 6))
    return X, np.digitize(X @ rng.normal(size=6) + rng.logistic(size=n), [-2, -0.5, 0.5, 2])


def evaluated(model: Any, X: Any, y: Any, values: Any) -> tuple[float, Any]:
    """The mean loss of a model without a penalty at some parameters, and its gradient."""
    ends = np.cumsum([size for (size,) in model.layout.values()])[:-1]
    params = dict(zip(model.layout, np.split(values, ends), strict=True))
    out = {name: np.zeros_like(value) for name, value in params.items()}
    loss = model.loss_gradient(params, Batch(X, y, None, len(y)), out)
    return loss / len(y), np.concatenate(list(out.values())) / len(y)


@pytest.mark.parametrize("mode", MODES)
def test_few_parameters_end_at_the_optimum_by_default(mode):
    X, y = ordered()
    check(model := Ordinal(6, 5), X, y)
    start = np.concatenate([np.zeros(6), [-1.0], np.zeros(3)])
    best = scipy.optimize.minimize(
        lambda values: evaluated(model, X, y, values), start, jac=True, options={"gtol": 1e-8}
    )
    found = ModelClassifier(Ordinal, mode=mode, n_replicas=2, random_state=0).fit(X, y)
    loss, _ = evaluated(model, X, y, np.concatenate(list(found.params_.values())))
    assert loss <= best.fun * (1 + 1e-4)
    assert found.history_[-1]["full_batch"]
    assert found.n_iter_ < 50


def test_passes_and_steps_find_the_same_penalised_optimum():
    X, y = ordered(600)
    options = {"alpha": 0.01, "random_state": 0}
    passes = ModelClassifier(Softmax, optimizer="lbfgs", tol=1e-8, **options).fit(X, y)
    steps = ModelClassifier(
        Softmax, optimizer="sgd", batch_size=600, learning_rate=1.0, tol=None, max_iter=1500,
        **options,
    ).fit(X, y)  # fmt: skip
    assert not steps.history_[-1]["full_batch"]
    np.testing.assert_allclose(passes.params_["coef"], steps.params_["coef"], atol=1e-3)


class Large(Softmax):
    """With more parameters than "auto" has passes for."""

    def __init__(self, n_features: int, n_classes: int) -> None:
        super().__init__(n_features, n_classes)
        self.layout["unused"] = (1001,)

    def init(self, rng):
        return {**super().init(rng), "unused": 0.0}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("model", "options"),
    [
        (Noisy, {}),
        (Centred, {}),
        (Large, {}),
        (Softmax, {"learning_rate": 0.01}),
        (Softmax, {"batch_size": 32}),
        (Softmax, {"early_stopping": True}),
        (Softmax, {"tol": None}),
        (Softmax, {"mode": AllReduce(period=4)}),
    ],
)
def test_auto_takes_steps_where_passes_cannot_be(model, options):
    X, y = ordered(200)
    found = ModelClassifier(model, **{"max_iter": 3} | options).fit(X, y)
    assert not any(record["full_batch"] for record in found.history_)


@pytest.mark.parametrize(
    ("model", "options", "what"),
    [
        (Noisy, {}, "a model that draws by chance"),
        (Centred, {}, r"tensors that are not trained \(mean, batches\)"),
        (Softmax, {"learning_rate": 0.01}, "learning_rate=0.01"),
        (Softmax, {"mode": AllReduce(period=4)}, r"mode=AllReduce\(period=4\)"),
    ],
)
def test_passes_that_cannot_be_are_refused(model, options, what):
    with pytest.raises(ValueError, match=f"optimizer='lbfgs' is not possible with {what}: use"):
        ModelClassifier(model, optimizer="lbfgs", **options).fit(*ordered(200))


def test_one_epoch_is_no_pass():
    model = ModelClassifier(Softmax).partial_fit(*ordered(200), classes=range(5))
    assert not model.history_[-1]["full_batch"]
    model.fit(*ordered(200))
    assert model.history_[-1]["full_batch"]
    assert not model.partial_fit(*ordered(200)).history_[-1]["full_batch"]
    with pytest.raises(ValueError, match="not possible with partial_fit"):
        model.set_params(optimizer="lbfgs").partial_fit(*ordered(200))
