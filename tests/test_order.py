"""The order of rows: what is sorted trains as what is shuffled."""

from __future__ import annotations

from itertools import chain
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from sklearn.metrics import log_loss

import dps
from dps.data.batches import InMemory
from dps.data.blocks import Block, features_of
from dps.training.plan import make_plan

N, PARTS = 12_000, 12
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 8)).astype(np.float32)
Y = (X @ np.linspace(-1, 1, 8) + RNG.logistic(size=N) > 0).astype(int)
SORTED = np.argsort(Y, kind="stable")
PIECES = [slice(N * part // PARTS, N * (part + 1) // PARTS) for part in range(PARTS)]


def on_workers(client: Client, values: Any, apart: bool) -> list[Any]:
    """Partitions by turns on the workers, or the first half on one and the other on another."""
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
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


@every_way
@pytest.mark.parametrize("apart", [False, True], ids=["mixed", "one label a worker"])
def test_sorted_labels_train_as_well_as_shuffled_ones(
    client: Client, how: Any, apart: bool
) -> None:
    values = [on_workers(client, v, apart) for v in (X, Y, X[SORTED], Y[SORTED])]
    if apart and how["mode"] == "async":
        pytest.skip("where nobody waits, a replica may be alone with its label for a while")
    assert excess(*values, client=client, n_replicas=2, **how) < 0.005


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
        "rows": [1000] * 3, "count": lambda piece: piece.rows, "elements": 10**9,
        "holders": "aaa", "threads": {"a": 4}, "batch_size": 100, "n_replicas": "auto",
        "n_shards": 1, "rebalance": False,
    }  # fmt: skip
    plan = make_plan(dps.Async(), **options, mixed=True)
    assert [rank.rows for rank in plan.ranks] == [750] * 4
    for rank in plan.ranks:
        first = sum(piece.rows for piece in rank.pieces if piece.partition == 0)
        assert abs(first - 250) <= 50


@pytest.mark.parametrize("count", [1, 12, 17, 40, 1000])
def test_every_group_of_blocks_comes_from_all_over_them(count: int) -> None:
    rows = np.zeros((1, 1))
    blocks = [Block(b, features_of(rows, float), rows[0], None, 0, 1) for b in range(count)]
    source = InMemory(blocks, 3, 0)
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
