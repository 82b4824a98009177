"""The order of rows: what is sorted trains as what is shuffled, and an exchange loses no row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from cases import slow
from configure import configure
from distributed import Client
from hypothesis import given, strategies as st
from scipy.special import expit
from sklearn.metrics import log_loss

import dps
from dps.cluster.dask import DaskCluster
from dps.cluster.threads import ThreadCluster
from dps.data.collections.partitions import Partition
from dps.data.exchange import RandomSplit
from dps.data.feed.blocks import Block, features_of
from dps.data.feed.cuts import LoadedCut, Source
from dps.training.job import new_fit_id
from dps.training.plan.plan import Located, make_plan, make_split

N, PARTS = 12_000, 12
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 8)).astype(np.float32)
Y = (X @ np.linspace(-1, 1, 8) + RNG.logistic(size=N) > 0).astype(int)
SORTED = np.argsort(Y, kind="stable")
PIECES = [slice(N * part // PARTS, N * (part + 1) // PARTS) for part in range(PARTS)]


def on_workers(client: Client, values: Any, apart: bool) -> list[Any]:
    """Partitions by turns on the workers, or the first half on one and the other on another."""
    workers = sorted(client.nthreads())
    homes = [workers[p * 2 // PARTS if apart else p % 2] for p in range(PARTS)]
    return [
        client.scatter(values[at], workers=[home], hash=False)
        for at, home in zip(PIECES, homes, strict=True)
    ]


def excess(given: Any, labels: Any, given_sorted: Any, labels_sorted: Any, **how: Any) -> float:
    """By which part the log loss of sorted data is worse than that of shuffled data."""
    losses = [
        log_loss(Y, dps.LinearClassifier(random_state=1, **how).fit(*data).predict_proba(X))
        for data in ((given, labels), (given_sorted, labels_sorted))
    ]
    return float(losses[1] / losses[0] - 1)


HOW = [
    {"mode": mode, "optimizer": optimizer}
    for mode in ("sync", "async", "allreduce")
    for optimizer in ("auto", "adagrad")
    if (mode, optimizer) != ("async", "adagrad")  # that is its "auto"
]
every_way = pytest.mark.parametrize("how", HOW, ids=lambda how: "-".join(how.values()))


@pytest.mark.parametrize(
    ("how", "apart"), [(HOW[0], True), (HOW[1], False), (HOW[2], True), (HOW[3], False)]
)
def test_sorted_labels_train_as_well_as_shuffled_ones(
    client: Client, how: Any, apart: bool
) -> None:
    values = [on_workers(client, v, apart) for v in (X, Y, X[SORTED], Y[SORTED])]
    # Where no one waits, a replica may be alone with its label for a while.
    shuffle = "global" if apart and how["mode"] == "async" else True
    assert excess(*values, client=client, n_replicas=2, shuffle=shuffle, **how) < 0.005


@every_way
@pytest.mark.parametrize("parts", [1, PARTS])
def test_sorted_labels_train_as_well_in_one_process(how: Any, parts: int) -> None:
    chunks = N // parts
    values: Any = [X, Y, X[SORTED], Y[SORTED]]
    if parts > 1:
        values = [da.from_array(v, chunks=(chunks, *v.shape[1:])) for v in values]
    for n_replicas in (1, 2):
        assert excess(*values, n_replicas=n_replicas, **how) < 0.005


def test_replicas_of_a_worker_have_rows_of_every_label() -> None:
    options: Any = {
        "count": lambda piece: piece.rows, "batch_size": 100, "n_replicas": "auto",
        "rebalance": False,
    }  # fmt: skip
    data = Located([1000] * 3, "aaa", {"a": 4}, 10**9)
    plan = make_plan(dps.Async(), data, **options, mixed=True)
    assert [rank.rows for rank in plan.ranks] == [750] * 4
    for rank in plan.ranks:
        first = sum(piece.rows for piece in rank.pieces if piece.partition == 0)
        assert abs(first - 250) <= 50


@pytest.mark.parametrize("count", [1, 12, 17, 40, 1000])
def test_every_group_of_blocks_comes_from_all_over_them(count: int) -> None:
    rows = np.zeros((1, 1))
    blocks = [Block(b, features_of(rows, float), rows[0], None, 0, 1) for b in range(count)]
    source = Source([LoadedCut(block) for block in blocks], 3, 0, lambda: None)
    of: dict[int, int] = {id(block): number for number, block in enumerate(blocks)}
    groups = [[of[id(part._block)] for part in group] for group in source.groups(0)]
    assert sorted(chain(*groups)) == list(range(count))
    assert max(map(len, groups)) - min(map(len, groups)) <= 1
    assert len(groups) == -(-count // 16)
    for group in groups:  # one of each run of neighbours
        assert len({number // len(groups) for number in group}) == len(group)
    assert (
        groups != [[of[id(part._block)] for part in group] for group in source.groups(1)]
        or count == 1
    )


SPLITS = st.builds(
    RandomSplit,
    seed=st.integers(0, 2**31 - 2),
    turns=st.lists(st.integers(1, 3), min_size=1, max_size=9).map(
        lambda counts: tuple(d for d, count in enumerate(counts) for _ in range(count))
    ),
    rows=st.lists(st.integers(0, 50), min_size=1, max_size=8).map(tuple),
)


@given(split=SPLITS)
def test_every_row_is_dealt_out_once_and_turn_by_turn(split: RandomSplit) -> None:
    drawn = [split.draw(partition) for partition in range(len(split.rows))]
    for rows, goals in zip(split.rows, drawn, strict=True):
        assert sorted(np.concatenate(goals)) == list(range(rows))
        assert all((np.diff(numbers) > 0).all() for numbers in goals)
    sizes = [sum(len(goals[goal]) for goals in drawn) for goal in range(max(split.turns) + 1)]
    turns, whole = Counter(split.turns), sum(split.rows) // len(split.turns)
    assert all(whole * turns[g] <= n <= (whole + 1) * turns[g] for g, n in enumerate(sizes))


def test_a_deal_is_a_function_of_seed_and_partition() -> None:
    split = RandomSplit(seed=7, turns=(0, 1), rows=(8, 8))
    # The same on every machine.
    assert [numbers.tolist() for numbers in split.draw(0)] == FIRST
    other = RandomSplit(seed=8, turns=(0, 1), rows=(8, 8))
    assert len({str([g.tolist() for g in d.draw(p)]) for d in (split, other) for p in (0, 1)}) > 2
    times = Counter(
        row for seed in range(400) for row in RandomSplit(seed, (0, 1), (8,)).draw(0)[0]
    )
    assert all(abs(times[row] - 200) < 50 for row in range(8))  # five standard deviations


FIRST = [[0, 2, 6, 7], [1, 3, 4, 5]]


@pytest.mark.parametrize("n_replicas", ["auto", 1, 3])
@pytest.mark.parametrize("rows", [(900, 50, 0, 50), (1, 0, 0, 0), (3, 0, 0, 4)])
def test_new_partitions_are_equal_and_on_all_workers(rows: Any, n_replicas: Any) -> None:
    data = Located(rows, "aabb", {"a": 1, "b": 1, "c": 1}, 10**9)
    split, homes = make_split(0, data, n_replicas)
    sizes = np.sum([[len(g) for g in split.draw(p)] for p in range(4)], axis=0)
    assert len(sizes) == len(homes)
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
    wanted = 3 if n_replicas == "auto" else n_replicas
    assert len(set(homes)) == min(wanted, sum(rows))


def numbered(kind: str, first: int, rows: int) -> Partition:
    """Rows that say which they are in X, y and weight."""
    ids = np.arange(first, first + rows)
    values: Any = np.column_stack([ids + 1.0, np.zeros(rows), ids * 2.0])
    y: Any = np.array([f"label {n}" for n in ids], dtype=object)
    if kind == "csr":
        values = scipy.sparse.csr_array(values)
    elif kind == "frame":
        values = pd.DataFrame(values, columns=list("abc")).astype({"a": "Int64", "c": "int32"})
        y = pd.Series(y, index=ids[::-1])
    elif kind == "mixed":
        form = [np.asfortranarray, scipy.sparse.csr_matrix, lambda v: v.astype(int)][first % 3]
        values = form(values)
    return Partition(values, y, ids + 0.5)


def seen(X: Any, y: Any, weight: Any) -> list[tuple[float, ...]]:
    values = X.toarray() if scipy.sparse.issparse(X) else np.asarray(X, float)
    labels = [float(str(label).split()[1]) for label in y]
    return [
        (*row, *rest)
        for row, rest in zip(values.tolist(), zip(labels, weight, strict=True), strict=True)
    ]


@pytest.fixture(params=["threads", "dask"])
def cluster(request: pytest.FixtureRequest, client: Client) -> Iterator[Any]:
    made = (
        DaskCluster(client, new_fit_id(), 30)
        if request.param == "dask"
        else ThreadCluster(new_fit_id(), 2)
    )
    yield made
    made.close()


@pytest.mark.parametrize("kind", ["dense", "csr", "frame", "mixed"])
def test_an_exchange_brings_every_row_once(cluster: Any, kind: str) -> None:
    sizes = (7, 0, 30, 1, 12)
    firsts = np.cumsum([0, *sizes])[:-1]
    parts = [numbered(kind, int(f), n) for f, n in zip(firsts, sizes, strict=True)]
    if isinstance(cluster, DaskCluster):
        parts = [Partition(*map(dask.delayed, vars(part).values())) for part in parts]
    cluster.load(parts)
    before = list(chain(*cluster.map(seen)))
    workers = list(dict.fromkeys(cluster.holders))
    homes, turns = workers * 3, range(3 * len(workers))
    cluster.exchange(RandomSplit(3, tuple(turns), sizes), homes)
    after = cluster.map(seen)
    assert sorted(chain(*after)) == sorted(before)
    assert max(map(len, after)) - min(map(len, after)) <= 1
    assert [row[3] for row in before] != [row[3] for part in after for row in part]


WEIGHT = RNG.integers(1, 4, 2000).astype(float)
Z, LABELS = X[:2000], Y[:2000]


def cut_like(values: Any) -> Any:
    chunks = (1500, 0, 400, 100)
    return da.from_array(values, chunks=(chunks, *values.shape[1:]))


def frames(values: Any) -> Any:
    made = pd.DataFrame(values) if values.ndim == 2 else pd.Series(values)
    return dd.from_pandas(made.rename(columns=str) if values.ndim == 2 else made, npartitions=3)


CONTAINERS: dict[str, Any] = {
    "array": cut_like,
    "csr": lambda v: cut_like(v).map_blocks(scipy.sparse.csr_array) if v.ndim == 2 else cut_like(v),
    "unknown": lambda v: cut_like(v)[cut_like(np.arange(len(v))) >= 0],
    "frame": frames,
    "local": lambda v: v,
}


@pytest.mark.parametrize("kind", [*CONTAINERS][:2] + slow(*[*CONTAINERS][2:]))
def test_a_global_shuffle_trains_on_any_container(client: Client, kind: str) -> None:
    make = CONTAINERS[kind]
    how: Any = {
        "shuffle": "global", "optimizer": "adagrad", "client": client, "random_state": 0,
        "n_replicas": 2, "class_weight": "balanced", "max_iter": 5, "tol": None,
    }  # fmt: skip
    model = dps.LinearClassifier(**how).fit(make(Z), make(LABELS), make(WEIGHT))
    assert [rank.rows for rank in model.plan_.ranks] == [1000, 1000]
    assert len({rank.worker for rank in model.plan_.ranks}) == 2
    assert model.history_[-1]["rows_per_replica"] == (1000, 1000)
    plain = dps.LinearClassifier(class_weight="balanced", n_replicas=1).fit(Z, LABELS, WEIGHT)
    losses = [
        log_loss(LABELS, expit(Z @ m.coef_[0] + m.intercept_), sample_weight=WEIGHT)
        for m in (model, plain)
    ]
    assert losses[0] < losses[1] * 1.02


def test_a_global_shuffle_mends_what_workers_of_one_label_do_to_adam(client: Client) -> None:
    values = [on_workers(client, v, apart=True) for v in (X, Y, X[SORTED], Y[SORTED])]
    how: Any = {"optimizer": "adam", "n_replicas": 2, "learning_rate": "invscaling"}
    assert excess(*values, client=client, shuffle="global", mode="async", **how) < 0.02


def test_encoded_rows_are_exchanged_before_some_are_kept_for_validation(client: Client) -> None:
    frame = dd.from_pandas(
        pd.DataFrame({"a": Z[:, 0], "b": np.where(Z[:, 1] > 0, "x", "y"), "y": LABELS}),
        npartitions=3,
    )
    configure(rebalance=True)
    model = dps.LinearClassifier(
        shuffle="global", early_stopping=True, max_iter=3, n_replicas=2, random_state=0,
        client=client, tol=None,
    ).fit(frame[["a", "b"]], frame["y"])  # fmt: skip
    rows = [rank.rows for rank in model.plan_.ranks]
    assert abs(sum(rows) - 1800) < 70  # five standard deviations
    assert max(rows) - min(rows) < 70
    assert np.isfinite(model.history_[-1]["validation_loss"])


def test_a_global_shuffle_is_the_same_for_the_same_seed() -> None:
    def coefficients(seed: int, **how: Any) -> list[float]:
        how = {"optimizer": "adagrad", "max_iter": 3, "tol": None, "n_replicas": 2, **how}
        model = dps.LinearClassifier(shuffle="global", random_state=seed, **how)
        return model.fit(Z, LABELS).coef_.ravel().tolist()  # type: ignore[no-any-return]

    assert coefficients(1) == coefficients(1) != coefficients(2)
    assert coefficients(1, early_stopping=True) == coefficients(1, early_stopping=True)


def test_a_global_shuffle_goes_with_warm_starts_and_partial_fit() -> None:
    how: Any = {"shuffle": "global", "optimizer": "adagrad", "random_state": 0, "n_replicas": 2}
    model = dps.LinearClassifier(max_iter=2, tol=None, warm_start=True, **how)
    first = model.fit(Z, LABELS).loss_
    assert model.fit(Z, LABELS).loss_ < first
    parts = dps.LinearClassifier(**how)
    losses = [parts.partial_fit(Z, LABELS, classes=[0, 1]).loss_ for _ in range(3)]
    assert losses == sorted(losses, reverse=True)


def test_a_defect_is_told_of_the_users_partition(client: Client) -> None:
    values = Z.copy()
    values[1950] = np.inf
    model = dps.LinearClassifier(shuffle="global", optimizer="adagrad", client=client)
    with pytest.raises(ValueError, match=r"X in partition 3 holds infinity .*, in row 50"):
        model.fit(cut_like(values), cut_like(LABELS))


def test_another_word_for_shuffle_is_refused() -> None:
    with pytest.raises(ValueError, match="'shuffle' parameter"):
        dps.LinearClassifier(shuffle="local").fit(Z, LABELS)
