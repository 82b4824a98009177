"""Whatever holds the data, a fit ends as it does on NumPy arrays, or says what is wrong."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import dask.bag
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from configure import configure
from distributed import Client, LocalCluster

import dps
from dps.training.plan import sharing

LENGTHS = (30, 0, 7, 83)
ROWS, NAMES = sum(LENGTHS), ["a", "b", "c", "d"]
RNG = np.random.default_rng(0)
X = np.where(RNG.random((ROWS, 4)) < 0.6, RNG.normal(size=(ROWS, 4)), 0.0)
Y = (X[:, 0] - X[:, 2] + RNG.logistic(size=ROWS) > 0).astype(int)
T = X[:, 0] - X[:, 2] + RNG.normal(size=ROWS)
WEIGHT = RNG.integers(0, 4, ROWS).astype(float)

Make = Callable[[Any], Any]


def parts(values: Any) -> list[Any]:
    cuts = np.concatenate([[0], np.cumsum(LENGTHS)])
    return [values[a:b] for a, b in itertools.pairwise(cuts)]


def frame_of(values: Any) -> Any:
    if values.ndim == 1:
        return pd.Series(values)
    return pd.DataFrame(values, columns=NAMES[: values.shape[1]])


def array(values: Any) -> Any:
    return da.from_array(values, chunks=(LENGTHS, *values.shape[1:]))


def unknown(values: Any) -> Any:
    blocks = array(values)
    chunks = ((np.nan,) * len(LENGTHS), *blocks.chunks[1:])
    return blocks.map_blocks(lambda block: block, chunks=chunks)


def frame(values: Any) -> Any:
    pieces = [frame_of(part) for part in parts(values)]
    return dd.from_delayed([dask.delayed(piece) for piece in pieces], meta=pieces[0][:0])


def delayed(values: Any) -> Any:
    return [dask.delayed(part) for part in parts(values)]


def delayed_frames(values: Any) -> Any:
    return [dask.delayed(frame_of(part)) for part in parts(values)]


def one_column(values: Any) -> Any:
    return frame(values).to_frame(name="y")


def blocks_of(kind: Callable[[Any], Any], make: Make) -> Make:
    def made(values: Any) -> Any:
        blocks = make(values)
        if isinstance(blocks, list):
            return [dask.delayed(kind)(block) for block in blocks]
        return blocks.map_blocks(kind)

    return made


class StandIn:
    """As much of ``sparse.COO`` as dps asks for; its dependencies are too large for the tests."""

    def __init__(self, block: Any) -> None:
        self._values = scipy.sparse.coo_array(block)
        self.shape, self.dtype, self.ndim = block.shape, block.dtype, block.ndim

    def to_scipy_sparse(self) -> Any:
        return self._values


try:
    from sparse import COO
except ImportError:
    COO = StandIn


SPARSE: dict[str, Callable[[Any], Any]] = {
    "csr_matrix": scipy.sparse.csr_matrix,
    "csr_array": scipy.sparse.csr_array,
    "csc_array": scipy.sparse.csc_array,
    "coo_matrix": scipy.sparse.coo_matrix,
    "sparse.COO": COO,
}
DENSE: dict[str, Make] = {
    "array": array, "unknown": unknown, "frame": frame, "delayed": delayed,
    "delayed frames": delayed_frames,
}  # fmt: skip
FEATURES = DENSE | {
    f"{kind}, {name}": blocks_of(SPARSE[kind], make)
    for kind in SPARSE
    for name, make in (("array", array), ("unknown", unknown), ("delayed", delayed))
    if name == "delayed" or SPARSE[kind] is not StandIn  # Dask asks for more
}
VECTORS: dict[str, Make] = {
    "array": array, "unknown": unknown, "series": frame, "one column": one_column,
    "delayed": delayed, "local": lambda values: values,
}  # fmt: skip
PAIRS = [(x, y) for x in DENSE for y in VECTORS if y != "local" or x == "array"]
PAIRS += [(x, "array") for x in FEATURES if x not in DENSE]


def classifier(**options: Any) -> dps.LinearClassifier:
    # Columns of sparse rows are not standardized; here no columns are.
    some = {"max_iter": 5, "tol": None, "shuffle": False, "n_replicas": 1, "standardize": False}
    options = {**some, **options}
    return dps.LinearClassifier(**options)


EXPECTED = {weighted: classifier().fit(X, Y, WEIGHT if weighted else None) for weighted in (0, 1)}


@pytest.fixture(scope="module")
def client() -> Any:
    with (
        LocalCluster(
            n_workers=4, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("features", "labels", "weighted"), [(*pair, n % 2) for n, pair in enumerate(PAIRS)]
)
def test_every_mixture_of_containers_gives_the_model_of_numpy(
    features: str, labels: str, weighted: int
) -> None:
    data, make = FEATURES[features](X), VECTORS[labels]
    weight = make(WEIGHT) if weighted else None
    model = classifier().fit(data, make(Y), weight)
    np.testing.assert_allclose(model.coef_, EXPECTED[weighted].coef_, rtol=1e-6)
    assert model.n_features_in_ == 4
    assert ("frame" in features) == hasattr(model, "feature_names_in_")
    score = EXPECTED[weighted].score(X, Y, WEIGHT if weighted else None)
    assert model.score(data, make(Y), weight) == pytest.approx(score)


@pytest.mark.parametrize("kind", ["numpy", "pandas", *SPARSE])
@pytest.mark.parametrize("labels", ["array", "unknown", "series"])
def test_local_features_take_labels_of_dask(kind: str, labels: str) -> None:
    local = {"numpy": lambda values: values, "pandas": frame_of, **SPARSE}[kind](X)
    model = classifier().fit(local, VECTORS[labels](Y), VECTORS[labels](WEIGHT))
    np.testing.assert_allclose(model.coef_, EXPECTED[1].coef_, rtol=1e-6)
    np.testing.assert_array_equal(model.predict(local), EXPECTED[1].predict(X))
    score = model.score(local, VECTORS[labels](Y), VECTORS[labels](WEIGHT))
    assert score == pytest.approx(EXPECTED[1].score(X, Y, WEIGHT))


@pytest.mark.parametrize("features", FEATURES)
def test_predictions_come_in_the_partitions_of_the_data(features: str) -> None:
    data = FEATURES[features](X)
    model = classifier().fit(data, delayed(Y))
    lazy = model.decision_function(data)
    values = np.concatenate(dask.compute(*lazy) if isinstance(lazy, list) else [lazy.compute()])
    np.testing.assert_allclose(values, EXPECTED[0].decision_function(X), rtol=1e-6)


def test_a_bag_comes_in_by_the_documented_line() -> None:
    records = [dict(zip([*NAMES, "y"], row, strict=True)) for row in np.c_[X, Y].tolist()]
    table = dask.bag.from_sequence(records, npartitions=3).to_dataframe(
        meta=dict.fromkeys([*NAMES, "y"], float)
    )
    model = classifier().fit(table[NAMES], table["y"])
    np.testing.assert_allclose(model.coef_, EXPECTED[0].coef_, rtol=1e-6)


def test_xarray_comes_in_by_the_documented_line() -> None:
    xarray = pytest.importorskip("xarray")
    data = xarray.Dataset({"X": (("row", "column"), array(X)), "y": ("row", array(Y))})
    model = classifier().fit(data["X"].data, data["y"].data)
    np.testing.assert_allclose(model.coef_, EXPECTED[0].coef_, rtol=1e-6)
    with pytest.raises(TypeError, match=r"got DataArray: give its \.data"):
        classifier().fit(data["X"], data["y"])


@pytest.mark.parametrize(
    "lengths", [(120,), (108, 4, 4, 4), (30, 0, 30, 0, 30, 0, 15, 15)],
    ids=["one partition", "90 percent in one", "three of eight empty"],
)  # fmt: skip
def test_rebalanced_partitions_end_at_the_same_optimum(
    client: Client, lengths: tuple[int, ...]
) -> None:
    data, labels = (da.from_array(v, chunks=(lengths, *v.shape[1:])) for v in (X, Y))
    configure(rebalance=True)
    model = dps.LinearClassifier(client=client, n_replicas=4).fit(data, labels)
    np.testing.assert_allclose(model.coef_, dps.LinearClassifier().fit(X, Y).coef_, atol=1e-3)
    assert len({rank.worker for rank in model.plan_.ranks}) == 4
    for record in model.history_:
        assert sum(record["rows_per_replica"]) == record["rows"] == ROWS
        assert max(record["rows_per_replica"]) <= 32  # 30 each, and a twentieth


@pytest.mark.parametrize("make", [np.asarray, scipy.sparse.coo_array, frame_of])
def test_rows_that_move_are_held_out_and_mixed_as_if_they_had_not(
    client: Client, make: Make
) -> None:
    data, targets, weight = ([dask.delayed(kind(v))] for kind, v in
                             ((make, X), (np.asarray, T), (np.asarray, WEIGHT)))  # fmt: skip
    options = {"early_stopping": True, "max_iter": 3, "tol": None, "random_state": 0, "alpha": 0.0}
    models = []
    for moves in (False, True):
        configure(rebalance=moves)
        model = dps.LinearRegressor(client=client, n_replicas=2, **options)
        models.append(model.fit(data, targets, weight))
    here, there = models
    assert [rank.pieces[0].moved for rank in there.plan_.ranks] == [False, True]
    assert there.plan_.rows == here.plan_.rows < ROWS
    # A batch is all rows, so only rounding depends on the rank that had a row.
    np.testing.assert_allclose(there.coef_, here.coef_, rtol=1e-9)
    losses = [[record["validation_loss"] for record in m.history_] for m in (here, there)]
    np.testing.assert_allclose(*losses)


def test_auto_moves_rows_for_long_fits_by_stochastic_steps_only(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "_ELEMENTS_WORTH", 0)
    data = [dask.delayed(X)], [dask.delayed(Y)]

    def workers(**options: Any) -> int:
        model = dps.LinearClassifier(client=client, n_replicas=4, tol=None, **options).fit(*data)
        return len({rank.worker for rank in model.plan_.ranks})

    assert workers(optimizer="sgd", max_iter=10) == 4
    assert workers(optimizer="sgd", max_iter=9) == 1
    assert workers(optimizer="lbfgs", max_iter=10) == 1


@pytest.mark.parametrize("mode", ["sync", "async", "allreduce"])
@pytest.mark.parametrize(
    "options", [{}, {"shuffle": False}, {"early_stopping": True}, {"optimizer": "lbfgs"}],
    ids=["shuffled", "in order", "validated", "lbfgs"],
)  # fmt: skip
def test_every_replica_sees_its_rows_once_an_epoch(mode: str, options: dict[str, Any]) -> None:
    options = {"max_iter": 4, "batch_size": 17, "optimizer": "sgd", "tol": None, **options}
    if options["optimizer"] == "lbfgs":
        options |= {"batch_size": "auto", "tol": 1e-12}
    model = dps.LinearClassifier(mode=mode, n_replicas=3, random_state=0, **options)
    with pytest.warns() if options["tol"] else contextlib.nullcontext():
        model.fit(array(X), frame(Y), array(WEIGHT))
    shares = tuple(rank.rows for rank in model.plan_.ranks)
    assert [record["rows_per_replica"] for record in model.history_] == [shares] * 4
    assert sum(shares) == ROWS or "early_stopping" in options


def test_futures_are_trained_where_they_lie(client: Client) -> None:
    def futures(values: Any) -> Any:
        return client.scatter(parts(values), hash=False)

    for make in (np.asarray, scipy.sparse.csc_array, frame_of):
        data = client.scatter([make(part) for part in parts(X)], hash=False)
        before = client.who_has(data)
        model = classifier(client=client).fit(data, futures(Y), futures(WEIGHT))
        np.testing.assert_allclose(model.coef_, EXPECTED[1].coef_, rtol=1e-6)
        assert client.who_has(data) == before
        score = model.score(data, futures(Y), futures(WEIGHT))
        assert score == pytest.approx(EXPECTED[1].score(X, Y, WEIGHT))


LABELS = np.array([2**53, 2**53 + 1, 3, 4])[RNG.integers(0, 4, 80)]  # floats have no 2**53 + 1
LABELS_AS: dict[str, Any] = {
    "Int64": lambda: pd.Series(LABELS, dtype="Int64"),
    "column": lambda: pd.DataFrame({"y": pd.Series(LABELS, dtype="Int64")}),
    "boolean": lambda: pd.Series(LABELS == 3, dtype="boolean"),
    "string": lambda: pd.Series(LABELS.astype(str), dtype="string"),
    "category": lambda: pd.Series(LABELS, dtype="Int64").astype("category"),
}


@pytest.mark.filterwarnings("ignore:A column-vector y was passed")
@pytest.mark.parametrize("kind", LABELS_AS)
def test_labels_keep_their_values_and_kind_in_any_dtype(kind: str) -> None:
    y = LABELS_AS[kind]()
    X = pd.DataFrame(RNG.normal(size=(len(y), 2)), columns=["a", "b"])
    plain = LABELS == 3 if kind == "boolean" else LABELS.astype(str if kind == "string" else int)
    lazy = dd.from_pandas(X, npartitions=2), dd.from_pandas(y, npartitions=2)
    for data in ((X, y), lazy):
        model = dps.LinearClassifier(max_iter=1, tol=None).fit(*data)
        assert model.classes_.tolist() == np.unique(plain).tolist()
        assert model.classes_.dtype.kind == ("O" if kind == "string" else plain.dtype.kind)
