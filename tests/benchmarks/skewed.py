"""Partitions of very different size, with and without `rebalance`, beside equal ones; exchanges.

    python tests/benchmarks/skewed.py [--repeat K] [--quick]

Dense float32 rows lie on a LocalCluster of two processes with one thread each: half on each, 90% on
one in one partition, or all on one in one partition. Five epochs of Adagrad. A replica's idle share
is what it waits for the one with most rows, by the rows that each saw in an epoch; seconds are the
median of an epoch, and of the whole fit, in which rows are moved, or all exchanged by
``shuffle="global"``. Interleaved; medians.
"""

from __future__ import annotations

import statistics
from typing import Any

import dask
import numpy as np
from distributed import Client, wait

from dps import LinearClassifier
from measure import bars, cluster, options, table, take_turns

FEATURES = 60


def rows_of(number: int, rows: int) -> Any:
    return np.random.default_rng(number).standard_normal((rows, FEATURES), dtype=np.float32)


def labels_of(X: Any) -> Any:
    return (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(np.int8)


def lie(client: Client, shares: dict[int, list[int]]) -> tuple[list[Any], list[Any]]:
    """Partitions of so many rows, on the workers with these numbers."""
    workers = sorted(client.scheduler_info()["workers"])
    X, y = [], []
    for worker, lengths in shares.items():
        for rows in lengths:
            place = {"workers": [workers[worker]], "pure": False}
            X.append(client.submit(rows_of, len(X), rows, **place))
            y.append(client.submit(labels_of, X[-1], **place))
    wait(X + y)
    return X, y


def judge(model: LinearClassifier) -> dict[str, float]:
    rows = model.history_[-1]["rows_per_replica"]
    return {
        "idle": 1 - statistics.mean(rows) / max(rows),
        "replicas": len(rows),
        "epoch": statistics.median(record["seconds"] for record in model.history_),
    }


def main() -> None:
    chosen = options(__doc__, repeat=5)
    total = 20_000 if chosen.quick else 600_000
    with cluster() as client:
        part = total // 20
        equal = lie(client, {0: [part * 5] * 2, 1: [part * 5] * 2})
        skewed = lie(client, {0: [part * 18], 1: [part] * 2})
        one = lie(client, {0: [total]})

        def fit(data: Any, rebalance: bool = False, **how: Any) -> Any:
            how = {"optimizer": "adagrad", "max_iter": 5, "tol": None} | how

            def fitted(turn: int) -> LinearClassifier:
                with dask.config.set({"dps.rebalance": rebalance}):
                    return LinearClassifier(random_state=turn, **how).fit(*data)

            return fitted

        found = take_turns(
            {
                "equal partitions": fit(equal),
                "equal partitions, exchanged": fit(equal, shuffle="global"),
                "90% in one": fit(skewed),
                "90% in one, rebalance": fit(skewed, rebalance=True),
                "90% in one, exchanged": fit(skewed, shuffle="global"),
                "all in one": fit(one),
                "all in one, rebalance": fit(one, rebalance=True),
            },
            chosen.repeat,
            judge,
        )
    table(
        ("partitions", "replicas", "idle", "ms an epoch", "ms a fit"),
        [
            (name, f"{v['replicas']:.0f}", f"{v['idle']:.0%}", f"{1e3 * v['epoch']:.0f}",
             f"{1e3 * v['seconds']:.0f}")
            for name, v in found.items()
        ],
    )  # fmt: skip
    bars(
        *((f"{name}: idle", v["idle"], "<=", 0.1) for name, v in found.items()
          if "rebalance" in name)
    )  # fmt: skip


if __name__ == "__main__":
    main()
