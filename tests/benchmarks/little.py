"""Little fits: iris without a cluster, and what a fit costs on a cluster that runs.

    python tests/benchmarks/little.py [--repeat K] [--quick]

Medians, after a warm-up. The fixed cost is that of a fit of 20,000 x 100 float32 on a
LocalCluster of two processes with one thread each, data persisted, by the part of dps
that spends it; "replicas" runs from their launch to the last one's return.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
from distributed import wait
from sklearn.datasets import load_iris

from dps import LinearClassifier
from dps.cluster.dask import DaskCluster
from dps.training.run.supervise import Watcher
from measure import bars, cluster, options, table, timed

PARTS = {
    "checks of client and versions": (DaskCluster, "__init__"),
    "finding the data": (DaskCluster, "load"),
    "looking at the data": (DaskCluster, "map"),
    "making shards": (DaskCluster, "serve"),
    "launching replicas": (DaskCluster, "launch"),
    "replicas": (Watcher, "run"),
    "giving everything back": (DaskCluster, "close"),
}


def note_times(spent: dict[str, list[float]]) -> None:
    """Have the parts note the milliseconds they take."""

    def noting(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                spent[part].append(1e3 * (time.perf_counter() - began))

        return timed

    for part, (owner, name) in PARTS.items():
        setattr(owner, name, noting(part, getattr(owner, name)))


def fits(repeat: int, *data: Any) -> tuple[float, LinearClassifier]:
    """Median milliseconds of a fit after a warm-up, and the last model."""
    runs = [timed(LinearClassifier(random_state=0).fit, *data) for _ in range(repeat + 1)]
    return 1e3 * statistics.median(seconds for seconds, _ in runs[1:]), runs[-1][1]


def main() -> None:
    repeat = options(__doc__, repeat=20).repeat
    iris = load_iris(return_X_y=True)
    alone, model = fits(repeat, *iris)
    accuracy = model.score(*iris)
    print(f"iris: {alone:.1f} ms, accuracy {accuracy:.4f}, {model.n_iter_} passes\n")

    spent: dict[str, list[float]] = defaultdict(list)
    note_times(spent)
    with cluster() as client:
        X = da.random.default_rng(0).normal(size=(20_000, 100), chunks=(2_000, 100))
        X = X.astype(np.float32)
        X, y = client.persist((X, (X[:, :3].sum(axis=1) > 0).astype(np.int8)))
        wait([X, y])
        whole, model = fits(repeat, X, y)
    computing = 1e3 * sum(record["seconds"] for record in model.history_)
    parts = [(part, f"{statistics.median(times[1:]):.1f}") for part, times in spent.items()]
    table(
        ("a fit on a running cluster", "ms"),
        [*parts, (f"(in {model.n_iter_} passes)", f"{computing:.1f}"), ("all", f"{whole:.1f}")],
    )
    bars(
        ("iris, ms", alone, "<=", 20),
        ("fixed cost of a fit on a running cluster, ms", whole, "<=", 120),
    )


if __name__ == "__main__":
    main()
