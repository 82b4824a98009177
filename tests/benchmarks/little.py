"""Little fits: iris without a cluster, and what a fit costs on a cluster that runs.

    python tests/benchmarks/little.py [--repeat K]

Medians, after a warm-up. The fixed cost is that of a fit of 20,000 x 100 float32 on a
LocalCluster of two processes with one thread each, data persisted, by the part of dps
that spends it; "replicas" runs from their launch to the last one's return.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster, wait
from sklearn.datasets import load_iris

import dps.training.trainer as trainer
from dps import LinearClassifier
from dps.cluster.dask import DaskCluster

PARTS = {
    "checks of client and versions": (DaskCluster, "__init__"),
    "finding the data": (DaskCluster, "load"),
    "looking at the data": (DaskCluster, "map"),
    "making shards": (DaskCluster, "serve"),
    "launching replicas": (DaskCluster, "launch"),
    "replicas": (trainer._Watcher, "run"),
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


def fits(repeat: int, *data: Any) -> tuple[list[float], LinearClassifier]:
    """Milliseconds of each fit after a warm-up, and the last model."""
    milliseconds = []
    for _ in range(repeat + 1):
        began = time.perf_counter()
        model = LinearClassifier(random_state=0).fit(*data)
        milliseconds.append(1e3 * (time.perf_counter() - began))
    return milliseconds[1:], model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=20)
    repeat = parser.parse_args().repeat
    iris = load_iris(return_X_y=True)
    times, model = fits(repeat, *iris)
    print(f"iris: {statistics.median(times):.1f} ms, accuracy {model.score(*iris):.4f}, "
          f"{model.n_iter_} passes")  # fmt: skip

    spent: dict[str, list[float]] = defaultdict(list)
    note_times(spent)
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        X = da.random.default_rng(0).normal(size=(20_000, 100), chunks=(2_000, 100))
        X = X.astype(np.float32)
        X, y = client.persist((X, (X[:, :3].sum(axis=1) > 0).astype(np.int8)))
        wait([X, y])
        times, model = fits(repeat, X, y)
    print(f"a fit on a running cluster: {statistics.median(times):.0f} ms, of which")
    for part, milliseconds in spent.items():
        print(f"  {part:30} {statistics.median(milliseconds[1:]):6.1f} ms")
    computing = 1e3 * sum(record["seconds"] for record in model.history_)
    print(f"  (in {model.n_iter_} passes: {computing:.1f} ms)")


if __name__ == "__main__":
    main()
