"""A million dense rows: dps in each mode against its peers, and against the memory.

    python tests/benchmarks/dense.py [--rows N] [--repeat K] [--quick]

1,000,000 x 100 float32, labels from a logistic model, made on the workers of a
LocalCluster of two processes with one thread each, half on each, and persisted before
the clock starts; scikit-learn has them in this process. Everything is at its defaults and ended by
its own stopping rule, peers have the same penalty; the whole call of `fit` is timed.
"above optimum" is the objective, loss and penalty, above its minimum. "peak MB" is the data
and what the fit adds to it. Rows of one run are interleaved; medians.
"""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, wait
from sklearn.linear_model import LogisticRegression

from measure import (
    bars,
    cluster,
    installed,
    megabytes,
    options,
    read_speed,
    roofline,
    table,
    take_turns,
)
from peers import fastest_solver, in_each_mode, incremental, seconds_of_a_pass, sgd

FEATURES = 100
PEER = "scikit-learn LogisticRegression"


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


def objective(model: Any, X: Any, y: Any) -> float:
    """Mean log loss and the penalty of ``LogisticRegression(C=1)``, in double."""
    coef = np.ravel(model.coef_).astype(np.float64)
    raw = X @ coef + float(np.ravel(model.intercept_)[0])
    return float(np.logaddexp(0, -(2.0 * y - 1) * raw).mean() + coef @ coef / 2 / len(y))


def main() -> None:
    chosen = options(__doc__, repeat=5, rows=1_000_000)
    n = 20_000 if chosen.quick else chosen.rows
    speeds: list[float] = []
    with cluster() as client:
        X, y = make(client, n)
        # What comes over TCP may be unaligned, which would slow the peer down tenfold.
        X_here, y_here = np.require(X.compute(), requirements=["C", "A"]), y.compute()
        exact = LogisticRegression(tol=1e-8, max_iter=1000).fit(X_here, y_here)
        best = objective(exact, X_here, y_here)

        def judge(model: Any) -> dict[str, float]:
            if getattr(model, "mode", None) == "sync":  # the first, before BLAS is busy
                speeds.append(read_speed(client))
            found = {
                "above": objective(model, X_here, y_here) - best,
                "passes": float(np.max(getattr(model, "n_iter_", np.nan))),
            }
            return found | seconds_of_a_pass(model)

        contenders = in_each_mode(X, y)
        contenders[PEER] = lambda turn: LogisticRegression().fit(X_here, y_here)
        contenders["scikit-learn SGDClassifier"] = lambda turn: sgd(n, turn).fit(X_here, y_here)
        if installed("dask-ml", "dask_ml"):
            from dask_ml.linear_model import LogisticRegression as DaskLogisticRegression

            solver, words = fastest_solver(
                X, y, lambda model: objective(model, X_here, y_here) - best, patience=60
            )
            print(f"dask-ml's solvers, once each: {words}\n")
            dask_ml = f"dask-ml LogisticRegression ({solver})"
            contenders[dask_ml] = lambda turn: DaskLogisticRegression(solver=solver).fit(X, y)
            contenders["dask-ml Incremental(SGDClassifier)"] = lambda turn: incremental(
                n, turn
            ).fit(X, y, classes=[0, 1])
        else:
            dask_ml = None
        medians = take_turns(contenders, chosen.repeat, judge, client)

    data = X_here.nbytes + y_here.nbytes
    peer = medians[PEER]["seconds"]
    print(f"{n:,} x {FEATURES} float32, {megabytes(data)} MB\n")
    table(
        ("", "seconds", "times faster", "above optimum", "peak MB", "passes"),
        (
            (
                name, f"{row['seconds']:.3f}", f"{peer / row['seconds']:.1f}",
                f"{row['above']:.1e}", megabytes(data + row["added"]), f"{row['passes']:g}",
            )
            for name, row in medians.items()
        ),
    )  # fmt: skip
    passes = {name: row["pass"] for name, row in medians.items() if "pass" in row}
    reached = roofline(X_here.nbytes, passes, float(np.median(speeds)))
    ours = medians["dps sync"]["seconds"]
    bars(
        ("dense: times faster than LogisticRegression", peer / ours, ">=", 4),
        (
            "dense: times faster than dask-ml's fastest solver",
            medians[dask_ml]["seconds"] / ours if dask_ml else np.nan, ">=", 40,
        ),
        ("dense: sync, objective above optimum", medians["dps sync"]["above"], "<=", 1e-4),
        ("dense: a pass of sync, share of what the memory gives", reached["dps sync"], ">=", 0.7),
    )  # fmt: skip


if __name__ == "__main__":
    main()
