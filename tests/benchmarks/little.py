"""Little fits: iris without a cluster, and what a fit costs on a cluster that runs.

    python tests/benchmarks/little.py [--repeat K] [--quick]

Medians, after a warm-up. The fixed cost is that of a fit of 10,000 x 100 float32 per worker on
a LocalCluster of processes with one thread each, data persisted, a replica per worker, by the
part of dps that spends it; "replicas" runs from their launch to the last one's return, "until
all have begun" from there to the last one's first step. `--workers N`: 2 by default.
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


#: Milliseconds.
BARS = {2: 70, 8: 150, 32: 600}


def note_times(spent: dict[str, list[float]], launched: list[float]) -> None:
    """Have the parts note the milliseconds they take, and when replicas are launched."""

    def noting(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            began = time.perf_counter()
            if part == "launching replicas":
                launched.append(time.time())
            try:
                return function(*args, **options)
            finally:
                spent[part].append(1e3 * (time.perf_counter() - began))

        return timed

    for part, (owner, name) in PARTS.items():
        setattr(owner, name, noting(part, getattr(owner, name)))


def fits(repeat: int, *data: Any, **options: Any) -> tuple[float, LinearClassifier]:
    """Median milliseconds of a fit after a warm-up, and the last model."""
    fit = LinearClassifier(random_state=0, **options).fit
    runs = [timed(fit, *data) for _ in range(repeat + 1)]
    return 1e3 * statistics.median(seconds for seconds, _ in runs[1:]), runs[-1][1]


def note_begins() -> None:
    """Have a worker note when its replicas begin to train."""
    import dps.training.replica.replica as replica

    def noting(*args: Any) -> None:
        replica.begins.append(time.time())  # type: ignore[attr-defined]
        train(*args)

    train, replica._train, replica.begins = replica._train, noting, []  # type: ignore[attr-defined]


def begins() -> list[float]:
    """Return what a worker has noted."""
    import dps.training.replica.replica as replica

    return list(replica.begins)  # type: ignore[attr-defined]


def on_workers(n: int, repeat: int) -> tuple[dict[str, float], LinearClassifier]:
    """Return median milliseconds of the parts of a fit on `n` workers, and the last model."""
    spent: dict[str, list[float]] = defaultdict(list)
    launched: list[float] = []
    note_times(spent, launched)
    with cluster(n) as client:
        X = da.random.default_rng(0).normal(size=(10_000 * n, 100), chunks=(2_000, 100))
        X = X.astype(np.float32)
        X, y = client.persist((X, (X[:, :3].sum(axis=1) > 0).astype(np.int8)))
        wait([X, y])
        client.run(note_begins)
        whole, model = fits(repeat, X, y, n_replicas=n)
        noted = zip(*client.run(begins).values(), strict=True)  # the ranks of each fit
    last = [1e3 * (max(ranks) - at) for ranks, at in zip(noted, launched, strict=True)]
    spent["(of these, until all have begun)"] = last
    found = {part: statistics.median(times[1:]) for part, times in spent.items()}
    return found | {"all": whole}, model


def main() -> None:
    chosen = options(__doc__, repeat=20, workers=2)
    iris = load_iris(return_X_y=True)
    alone, model = fits(chosen.repeat, *iris)
    accuracy = model.score(*iris)
    print(f"iris: {alone:.1f} ms, accuracy {accuracy:.4f}, {model.n_iter_} passes\n")

    found, model = on_workers(chosen.workers, chosen.repeat)
    computing = 1e3 * sum(record["seconds"] for record in model.history_)
    table(
        (f"a fit on {chosen.workers} workers", "ms"),
        [
            *((part, f"{spent:.1f}") for part, spent in found.items()),
            (f"(in {model.n_iter_} passes)", f"{computing:.1f}"),
        ],
    )
    bars(
        ("iris, ms", alone, "<=", 20),
        *((f"a fit on {n} workers, ms", found["all"], "<=", bar)
          for n, bar in BARS.items() if n == chosen.workers),
    )  # fmt: skip


if __name__ == "__main__":
    main()
