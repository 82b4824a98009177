"""A million dense rows: dps in each mode against scikit-learn, and against the memory.

    python tests/benchmarks/dense.py [--rows N] [--repeat K]

1,000,000 x 100 float32, labels from a logistic model, made on the workers of a
LocalCluster of two processes with one thread each, half on each, and persisted before
the clock starts. Everything is at its defaults and ended by its own stopping rule; the whole call
of `fit` is timed. "above optimum" is the objective, loss and penalty, above its minimum.
The last lines set a pass over the data beside the speed at which both processes together
sum the same numbers. Rows of one run are interleaved; medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster, wait
from sklearn.linear_model import LogisticRegression

from dps import LinearClassifier
from dps.modes import MODES

FEATURES = 100


def make(client: Client, rows: int) -> tuple[Any, Any]:
    """Rows and labels in the memory of the workers, the same on each."""
    true = np.random.default_rng(1).normal(size=FEATURES) * 0.3
    workers = sorted(client.nthreads())
    parts = []
    for number, worker in enumerate(workers):
        random = da.random.default_rng(number)
        n = rows // len(workers)
        chunk = -(-n // 5)
        X = random.normal(size=(n, FEATURES), chunks=(chunk, FEATURES)).astype(np.float32)
        u = random.random(size=n, chunks=chunk)
        y = (X @ true + da.log(u) - da.log1p(-u) > 0).astype(np.int8)
        # Left to itself Dask may put most of it on one.
        parts.append(client.persist((X, y), workers=[worker], allow_other_workers=False))
    wait(parts)
    return da.concatenate([X for X, _ in parts]), da.concatenate([y for _, y in parts])


def read_all(dask_worker: Any) -> tuple[int, float]:
    """Bytes of the matrices on a worker, and the seconds that summing them takes."""
    blocks = [block for block in dict(dask_worker.data).values() if np.ndim(block) == 2]
    began = time.perf_counter()
    for block in blocks:
        block.ravel().view(np.float64).sum()
    return sum(block.nbytes for block in blocks), time.perf_counter() - began


def objective(model: Any, X: Any, y: Any) -> float:
    """Mean log loss and the penalty of ``LogisticRegression(C=1)``, in double."""
    coef = np.ravel(model.coef_).astype(np.float64)
    raw = X @ coef + float(np.ravel(model.intercept_)[0])
    return float(np.logaddexp(0, -(2.0 * y - 1) * raw).mean() + coef @ coef / 2 / len(y))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    n = options.rows
    results: dict[str, list[tuple[float, float, float]]] = {}
    passes, speeds = [], []
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        X, y = make(client, n)
        # What comes over TCP may be unaligned, which would slow the peer down tenfold.
        X_here, y_here = np.require(X.compute(), requirements=["C", "A"]), y.compute()
        best = objective(LogisticRegression(tol=1e-8, max_iter=1000).fit(X_here, y_here),
                         X_here, y_here)  # fmt: skip

        def record(name: str, model: Any, *data: Any) -> None:
            began = time.perf_counter()
            model.fit(*data)
            seconds = time.perf_counter() - began
            above = objective(model, X_here, y_here) - best
            results.setdefault(name, []).append((seconds, above, float(np.max(model.n_iter_))))

        for repeat in range(options.repeat):
            for mode in MODES:
                model = LinearClassifier(mode=mode, random_state=repeat)
                record(f"dps {mode}", model, X, y)
                if mode == "sync":
                    passes.append(statistics.median(r["seconds"] for r in model.history_))
                    read = client.run(read_all).values()
                    speeds.append(sum(size for size, _ in read) / max(s for _, s in read))
            record("scikit-learn LogisticRegression", LogisticRegression(), X_here, y_here)

    peer = statistics.median(row[0] for row in results["scikit-learn LogisticRegression"])
    print("| | seconds | times faster | above optimum | passes |")
    print("|---|---|---|---|---|")
    for name, rows in results.items():
        seconds, above, epochs = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"| {name} | {seconds:.3f} | {peer / seconds:.1f} | {above:.1e} | {epochs:g} |")
    one_pass, speed = statistics.median(passes), statistics.median(speeds)
    reached = X_here.nbytes / one_pass
    print(f"\na pass of sync: {1e3 * one_pass:.1f} ms, {reached / 1e9:.1f} GB/s")
    print(f"both processes summing the same: {speed / 1e9:.1f} GB/s; reached {reached / speed:.0%}")


if __name__ == "__main__":
    main()
