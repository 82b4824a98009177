"""Bad input gets a clear error: what was wrong, where, and what to do."""

from __future__ import annotations

import asyncio
from importlib.metadata import PackageNotFoundError
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from configure import configure
from distributed import Client, LocalCluster

import dps
from dps.cluster.dask import calls
from dps.data.feed.held_out import HeldOut
from dps.errors import ClusterError, VersionError

ROWS = 40


def data() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, 3))
    return X, (X[:, 0] > 0).astype(int)


def dask_data(chunk: int = 10) -> tuple[Any, Any]:
    X, y = data()
    return da.from_array(X, chunks=(chunk, 3)), da.from_array(y, chunks=chunk)


def fails(
    message: str, X: Any, y: Any, weight: Any = None, kind: Any = ValueError, **options: Any
) -> None:
    with pytest.raises(kind, match=message):
        dps.LinearClassifier(**options).fit(X, y, weight)


@pytest.mark.parametrize("weight", [1e308, 1e-320])
def test_weights_that_overflow_or_vanish(weight: float) -> None:
    X, y = data()
    fails("sample_weight is .* on average", X, y, np.full(ROWS, weight))
    with pytest.raises(ValueError, match=r"class_weight, times sample_weight, is .* on average"):
        dps.LinearClassifier(class_weight={0: weight, 1: weight}).fit(X, y)


@pytest.mark.parametrize(
    ("model", "size"),
    [
        (dps.LinearRegressor(), 1e200),
        (dps.LinearRegressor(optimizer="adagrad"), 1e154),
        (dps.MLPRegressor(max_iter=2), 1e200),
    ],
)
def test_targets_whose_squares_overflow(model: Any, size: float) -> None:
    X, _ = data()
    with pytest.raises(ValueError, match=r"y has values (around|above) .*: divide y by a number"):
        model.fit(X, X[:, 0] * size)
    model.fit(X, X[:, 0] * 1e15)


def test_lengths_that_differ() -> None:
    X, y = data()
    fails("inconsistent numbers of samples: \\[40, 39\\]", X, y[:-1])
    X, y = dask_data()
    fails("y has 30 rows, X has 40: they must be equal", X, y[:30])


@pytest.mark.parametrize(
    ("value", "name"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")]
)
def test_values_that_are_not_finite_are_found(value: float, name: str) -> None:
    X, y = data()
    X[37, 1] = value
    if name != "NaN":  # which is encoded
        fails(f"X holds {name}.*row 37", X, y)
    for kind in (scipy.sparse.csr_matrix, scipy.sparse.csc_array):
        fails(f"X holds {name}.*row 37", kind(X), y)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (-1.0, "sample_weight is negative .-1. in row 11"),
        (np.nan, "sample_weight holds NaN, in row 11"),
        (np.inf, "sample_weight holds infinity .inf., in row 11"),
    ],
)
def test_weights_that_are_no_weights(bad: float, message: str) -> None:
    X, y = data()
    weight = np.ones(ROWS)
    weight[11] = bad
    fails(message, X, y, weight)


@pytest.mark.parametrize("containers", [data, dask_data], ids=["arrays", "dask"])
@pytest.mark.parametrize("part", ["held out", "trained on"])
def test_weights_of_which_a_part_of_early_stopping_has_none(part: str, containers: Any) -> None:
    X, y = containers()
    options = {"early_stopping": True, "validation_fraction": 0.5, "random_state": 0}
    seed = np.random.RandomState(0).randint(2**31 - 1)
    lengths = [ROWS] if containers is data else [10] * 4
    held = np.concatenate([HeldOut(seed, 0.5).rows(n, rows) for n, rows in enumerate(lengths)])
    weight = (held if part == "trained on" else ~held).astype(float)
    message = {
        "held out": "no row that counts fell into the validation set .of 40 rows.: raise",
        "trained on": "no row that counts is left to train on .of 40 rows.*: lower",
    }[part]
    with pytest.raises(ValueError, match=message):
        dps.LinearRegressor(**options).fit(X, y, weight)
    weight[np.flatnonzero(weight == 0)[:4]] = 1.0
    model = dps.LinearRegressor(**options).fit(X, y, weight)
    assert np.isfinite([record["validation_loss"] for record in model.history_]).all()


def test_a_class_without_weight_that_is_all_that_is_held_out() -> None:
    seed = np.random.RandomState(0).randint(2**31 - 1)
    y = HeldOut(seed, 0.5).rows(0, 4000).astype(int)  # of few rows some are held out
    X = np.ones((4000, 1))
    options = {"early_stopping": True, "validation_fraction": 0.5, "random_state": 0}
    fails("no row that counts fell into", X, y, class_weight={0: 1.0, 1: 0.0}, **options)
    fails("no row that counts is left to train on", X, y, class_weight={0: 0.0}, **options)


def test_early_stopping_with_too_few_rows() -> None:
    X, y = data()
    X, y = X[:3], np.array([0, 1, 0])
    for fraction, message in ((0.001, "fell into the validation set"), (0.999, "left to train on")):
        fails(message, X, y, early_stopping=True, validation_fraction=fraction, random_state=0)


def test_features_that_differ_from_fit() -> None:
    X, y = dask_data()
    model = dps.LinearClassifier(max_iter=2, tol=None).fit(X, y)
    for wider in (np.zeros((2, 4)), da.zeros((2, 4))):
        with pytest.raises(
            ValueError, match="X has 4 features, but LinearClassifier is expecting 3"
        ):
            model.predict(wider)
    frame = pd.DataFrame(data()[0], columns=list("abc"))
    model.fit(dd.from_pandas(frame, npartitions=4), y)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(dd.from_pandas(frame.rename(columns={"a": "z"}), npartitions=4))


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("optimizer", "adamax", r"\['auto', 'lbfgs', 'adagrad', .*\]. Got 'adamax'"),
        ("loss", "squared_error", "classification .*'hinge', 'log_loss'.* Got 'squared_error'"),
        ("mode", "hogwild", r"\['allreduce', 'async', 'auto', 'hybrid', 'sync'\].*Got 'hogwild'"),
        ("learning_rate", "warp", r"\['auto', 'constant', 'cosine', 'invscaling', 'step'\]"),
        ("learning_rate", -1.0, "learning_rate.*Got -1.0"),
        ("alpha", -1.0, "alpha.*Got -1.0"),
        ("l1_ratio", 1.5, "l1_ratio.*Got 1.5"),
        ("penalty", "l3", "penalty.*Got 'l3'"),
        ("max_iter", 0, "max_iter.*Got 0"),
        ("batch_size", 0, "batch_size.*Got 0"),
        ("n_replicas", 0, "n_replicas.*Got 0"),
        ("validation_fraction", 1.0, "validation_fraction.*Got 1.0"),
        ("class_weight", "fair", "class_weight.*Got 'fair'"),
        ("class_weight", {7: 2.0}, r"names \[7\], which are no classes of y: \[0, 1\]"),
    ],
)  # fmt: skip
def test_parameters_out_of_range(option: str, value: Any, message: str) -> None:
    fails(message, *data(), **{option: value})


@pytest.mark.parametrize(
    "options",
    [
        {"average": True}, {"learning_rate": 0.1}, {"batch_size": 32}, {"early_stopping": True},
    ],
    ids=lambda options: next(iter(options)),
)  # fmt: skip
def test_lbfgs_refuses_what_it_cannot_honour(options: dict[str, Any]) -> None:
    (name,) = options
    X, y = data()
    with pytest.raises(ValueError, match=f"optimizer='lbfgs' is not possible with {name}"):
        dps.LinearClassifier(optimizer="lbfgs", **options).fit(X, y)
    with pytest.raises(ValueError, match="optimizer='lbfgs' is not possible with partial_fit"):
        dps.LinearClassifier(optimizer="lbfgs").partial_fit(X, y, classes=[0, 1])


def test_modes_check_their_options() -> None:
    with pytest.raises(ValueError, match=r"'access' parameter of Sync.*Got 'nfs'"):
        dps.Sync(access="nfs")


def test_a_cluster_that_cannot_train() -> None:
    X, y = data()
    with LocalCluster(n_workers=0, dashboard_address=":0") as cluster:
        client = Client(cluster, set_as_default=False)
        configure(timeout=0.5)
        fails("has no workers, and none has come for 0.5 s", X, y, client=client, kind=ClusterError)
        client.close()
        fails("the client is closed: make a new Client", X, y, client=client, kind=ClusterError)
        address = cluster.scheduler_address
    fails("no scheduler answers at client=", X, y, client=address, kind=ClusterError)
    fails("must be a distributed.Client, a cluster, .* got 7", X, y, client=7, kind=TypeError)


def test_an_asynchronous_client_trains_in_another_thread() -> None:
    async def fit(address: str) -> None:
        async with Client(address, asynchronous=True, set_as_default=False) as client:
            fails("block the event loop of an asynchronous client", *data(), client=client,
                  kind=ClusterError)  # fmt: skip
            model = dps.LinearClassifier(client=client)
            await asyncio.to_thread(model.fit, *data())
            assert model.score(*data()) > 0.5

    with LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
    ) as cluster:
        asyncio.run(fit(cluster.scheduler_address))


@pytest.mark.parametrize("theirs", ["0.0.1", None])
def test_workers_with_another_dps_or_none(theirs: str | None) -> None:
    class Answering(Client):
        async def _run(self, *args: Any, workers: list[str], **kwargs: Any) -> Any:
            return {worker: theirs or PackageNotFoundError("dps") for worker in workers}

    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Answering(cluster, set_as_default=False) as client,
    ):
        message = "a worker has dps 0.0.1" if theirs else "dps is not installed on a worker"
        fails(message, *data(), client=client, kind=VersionError)


def test_a_dps_that_is_not_installed_here(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(calls, "_checked", {})
    monkeypatch.setattr(calls, "version", version)
    fails("is imported here without being installed", *data(), client=client, kind=VersionError)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("n_shards", 0, "a number above 0 or 'auto'"),
        ("rebalance", "maybe", "True, False or 'auto'"),
        ("cache", "tape", "'auto', 'memory', 'disk' or None"),
        ("timeout", 0, "seconds above 0, or a time such as '30m'"),
        ("silence", "soon", "seconds above 0, or a time such as '30m'"),
        ("grace", True, "seconds above 0, or a time such as '30m'"),
    ],
)
def test_options_of_dasks_configuration_are_checked(name: str, value: Any, wanted: str) -> None:
    configure(**{name: value})
    fails(f"dps.{name} of dask.config must be {wanted}, got {value!r}", *data())
