"""Steps by keys against dense steps: what a sparse batch does not touch follows exactly."""

from dataclasses import dataclass

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
from cases import pairs
from configure import placed

import dps
from dps import LinearClassifier, LinearRegressor
from dps.losses import LogLoss
from dps.optimizers import SGD, Adagrad, Adam, Constant, InvScaling, Momentum, Schedule
from dps.optimizers.update import Rates
from dps.training.plan import batches
from dps.training.run import launch

ROWS, COLUMNS = 600, 2000
MODES = {"sync": dps.Sync, "async": dps.Async, "allreduce": dps.AllReduce}
OPTIMIZERS = {
    "sgd": (SGD(), 1.0),
    "momentum": (Momentum(momentum=0.8), 0.3),
    "adagrad": (Adagrad(), 0.5),
}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = scipy.sparse.random_array(
        (ROWS, COLUMNS), density=0.004, format="csr", random_state=rng, dtype=np.float64
    )
    X = scipy.sparse.csr_array(X)
    y = (X @ rng.standard_normal(COLUMNS) > 0).astype(int)
    return X, y


@dataclass(frozen=True)
class PythonLoss(LogLoss):
    def evaluate(self, y, raw, weight, out):
        return super().evaluate(y, raw, weight, out)


def fit(data, by_keys, monkeypatch, **options):
    monkeypatch.setattr(batches, "_COST_OF_A_KEY", 0.0 if by_keys else np.inf)
    X, y = data
    kind = LinearRegressor if options.get("loss") == "squared_error" else LinearClassifier
    usual = {"random_state": 0, "max_iter": 3, "tol": None, "batch_size": 16, "alpha": 1e-3}
    return kind(**placed({**usual, **options})).fit(X, y)


def test_the_data_of_these_tests_goes_by_keys_by_itself(data, monkeypatch):
    seen = []
    original = launch.rates_of
    monkeypatch.setattr(launch, "rates_of", lambda *args: seen.append(original(*args)) or seen[-1])
    X, y = data
    for optimizer, batch_size, rows in (
        ("sgd", 16, X), ("sgd", 600, X), ("sgd", 16, X.toarray()), ("adam", 16, X),
        (Adam(lazy=True), 600, X),
    ):  # fmt: skip
        LinearClassifier(
            optimizer=optimizer, batch_size=batch_size, max_iter=1, tol=None, alpha=1e-3
        ).fit(rows, y)
    assert [rates is not None for rates in seen] == [True, False, False, False, True]


@pairs(
    mode=MODES,
    optimizer=OPTIMIZERS,
    penalty=[None, "l2", "l1", "elasticnet"],
)
def test_the_result_is_that_of_dense_steps(mode, optimizer, penalty, data, monkeypatch):
    replicas = 1 if mode == "async" else 2
    chosen, rate = OPTIMIZERS[optimizer]
    options = {
        "mode": mode, "optimizer": chosen, "penalty": penalty, "n_replicas": replicas,
        "learning_rate": InvScaling(rate),
    }  # fmt: skip
    dense = fit(data, False, monkeypatch, **options)
    by_keys = fit(data, True, monkeypatch, **options)
    np.testing.assert_allclose(by_keys.coef_, dense.coef_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(by_keys.intercept_, dense.intercept_, rtol=1e-9)
    assert by_keys.loss_ == pytest.approx(dense.loss_, rel=1e-11)


@pytest.mark.parametrize("mode", ["sync", "allreduce"])
def test_shards_and_ways_to_them_do_not_change_a_bit(mode, data, monkeypatch):
    def trained(n_shards):
        model = fit(
            data, True, monkeypatch, mode=mode, optimizer="adagrad", n_replicas=2,
            n_shards=n_shards,
        )  # fmt: skip
        return np.append(model.coef_.ravel(), model.intercept_)

    one = trained(1)
    for n_shards in (2, 3):
        np.testing.assert_array_equal(trained(n_shards), one)


def test_sync_and_allreduce_have_the_same_bits(data, monkeypatch):
    options = {"optimizer": "momentum", "n_replicas": 3}
    sync = fit(data, True, monkeypatch, mode="sync", **options)
    allreduce = fit(data, True, monkeypatch, mode="allreduce", **options)
    np.testing.assert_array_equal(sync.coef_, allreduce.coef_)


def test_several_classes_float32_and_wide_indices_go_by_keys_too(data, monkeypatch):
    X, y = data
    X = X.astype(np.float32)
    X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    y = y + (np.arange(ROWS) % 3 == 0)
    options = {"optimizer": "sgd", "n_replicas": 2}
    dense = fit((X, y), False, monkeypatch, **options)
    by_keys = fit((X, y), True, monkeypatch, **options)
    assert by_keys.coef_.dtype == np.float32
    np.testing.assert_allclose(by_keys.coef_, dense.coef_, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_validation_and_later_fits_see_nothing_lazy(mode, data, monkeypatch):
    replicas = 1 if mode == "async" else 2

    def trained(by_keys):
        model = fit(
            data, by_keys, monkeypatch, mode=mode, optimizer="momentum", n_replicas=replicas,
            early_stopping=True, warm_start=True,
        )  # fmt: skip
        return model.fit(*data)

    dense, by_keys = trained(False), trained(True)
    for ours, theirs in zip(by_keys.history_, dense.history_, strict=True):
        assert ours["validation_loss"] == pytest.approx(theirs["validation_loss"], rel=1e-9)
    np.testing.assert_allclose(by_keys.coef_, dense.coef_, rtol=1e-8, atol=1e-12)


@dataclass(frozen=True)
class Ramp(Schedule):
    """Rises from nothing, and is defined for the epochs of the fit only."""

    def __call__(self, t):
        assert 0 <= t < 3
        return self.rate * t


@pytest.mark.parametrize("mode", MODES)
def test_a_schedule_is_asked_within_the_fit_only(mode, data, monkeypatch):
    options = {"mode": mode, "optimizer": Momentum(momentum=0.95), "learning_rate": Ramp(0.05)}
    options["n_replicas"] = 1 if mode == "async" else 2
    dense = fit(data, False, monkeypatch, **options)
    by_keys = fit(data, True, monkeypatch, **options)
    np.testing.assert_allclose(by_keys.coef_, dense.coef_, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rates", ["of_epoch", "of_three_epochs"])
def test_rates_of_a_constant_schedule_are_all_the_same(rates):
    table, _ = getattr(Rates(Constant(0.1), 5, epochs=0, version=0, max_epochs=1), rates)(0)
    assert set(table) == {0.1}


@pytest.mark.parametrize(
    "options",
    [{"average": True}, {"loss": PythonLoss()}],
    ids=["average", "loss"],
)
def test_a_lazy_adam_that_cannot_be_lazy_is_an_error(options, data):
    X, y = data
    model = LinearClassifier(optimizer=Adam(lazy=True), max_iter=1, tol=None, **options)
    with pytest.raises(ValueError, match="lazy=True"):
        model.fit(X, y)
    model.fit(X.toarray(), y)  # on dense rows it is dense


def test_async_with_several_replicas_reaches_the_same_loss(data, monkeypatch):
    options = {"mode": "async", "optimizer": "adagrad", "max_iter": 20}
    alone = fit(data, True, monkeypatch, n_replicas=1, **options)
    three = fit(data, True, monkeypatch, n_replicas=3, **options)
    assert three.loss_ == pytest.approx(alone.loss_, rel=0.1)
    assert all(record["rows"] == ROWS for record in three.history_)


def test_a_gradient_that_overflows_is_an_error(data, monkeypatch):
    X, y = data
    with pytest.raises(dps.errors.NonFiniteError):
        fit(
            (X, y * 1e150), True, monkeypatch, optimizer="sgd", learning_rate=1e200,
            loss="squared_error", max_iter=50,
        )  # fmt: skip


def facts(model):
    history = [{k: v for k, v in r.items() if "second" not in k} for r in model.history_]
    return model.coef_.tobytes(), model.intercept_.tobytes(), repr(history)


def test_streams_have_the_bits_of_the_mapped_window(data, client, monkeypatch):
    X, y = data
    rows = [slice(0, 200), slice(200, 600)]
    XX = da.concatenate([da.from_array(X[part], chunks=(-1, -1)) for part in rows])
    yy = da.concatenate([da.from_array(y[part]) for part in rows])
    for mode in MODES.values():
        replicas = 1 if mode is dps.Async else 2
        fitted = [
            fit(
                (XX, yy), True, monkeypatch, mode=mode(access=access), client=client,
                optimizer="momentum", n_replicas=replicas, n_shards=shards,
            )
            for access, shards in (("mapped", 1), ("stream", 1), ("stream", 2))
        ]  # fmt: skip
        assert facts(fitted[0]) == facts(fitted[1]) == facts(fitted[2])
