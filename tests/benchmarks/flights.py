"""Late flights of 2001 as sparse one-hot rows: dps in each mode against its peers.

    python tests/benchmarks/flights.py [--rows N] [--repeat K] [--quick]

3,000,000 x 3,926, 8 non-zeros a row, float32; test rows are those whose index is
divisible by 5. dps runs on a LocalCluster of two processes, the training rows a CSR
dask array in 12 chunks that is persisted before the clock starts; everything is at its
defaults and ended by its own stopping rule, peers have the same penalty. Vowpal Wabbit has none,
and reads a text file that is written before its clock starts. "peak MB" is the data and what the
fit adds to it. Rows of one run are interleaved; medians.
"""

from __future__ import annotations

import itertools
from typing import Any

import dask.array as da
import numpy as np
import scipy.sparse
from distributed import Client, wait
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

import public_data
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
from peers import VowpalWabbit, in_each_mode, incremental, seconds_of_a_pass, sgd

DATA = public_data.DATA / "flights-3m.parquet"
PEER = "scikit-learn LogisticRegression"


def read_flights(rows: int | None = None) -> tuple[Any, Any]:
    """X as CSR of float32 and y (1: more than 15 minutes late), in the file's order."""
    import pandas as pd

    frame = pd.read_parquet(DATA)
    if rows is not None:
        frame = frame.iloc[:rows]
    date = frame["date"].dt
    pair = frame["origin"].astype(str) + "-" + frame["destination"].astype(str)
    columns = [
        frame["origin"], frame["destination"], date.hour, date.day_of_week, date.day, date.month,
        pair,
    ]  # fmt: skip
    codes, width = [], 0
    for column in columns:
        code, values = pd.factorize(column, sort=True)
        codes.append(code.astype(np.int32) + width)
        width += len(values)
    distance = frame["distance"].to_numpy(np.float64)
    n = len(frame)
    indices = np.empty((n, 8), np.int32)
    indices[:, :7] = np.stack(codes, axis=1)
    indices[:, 7] = width
    data = np.ones((n, 8), np.float32)
    data[:, 7] = (distance - distance.mean()) / distance.std()
    indptr = np.arange(0, 8 * n + 1, 8, dtype=np.int32)
    X = scipy.sparse.csr_matrix((data.ravel(), indices.ravel(), indptr), shape=(n, width + 1))
    return X, (frame["delay"].to_numpy() > 15).astype(np.int8)


def split(X: Any, y: Any) -> tuple[Any, Any, Any, Any]:
    """Training rows, and test rows: those whose index is divisible by 5."""
    test = np.arange(len(y)) % 5 == 0
    return X[~test], y[~test], X[test], y[test]


def on_cluster(client: Client, X: Any, y: Any, chunks: int = 12) -> tuple[Any, Any]:
    """Rows as a CSR dask array and labels, in the workers' memory."""
    cuts = [len(y) * k // chunks for k in range(chunks + 1)]
    rows = tuple(b - a for a, b in itertools.pairwise(cuts))
    blocks = [X[a:b] for a, b in itertools.pairwise(cuts)]
    futures = client.scatter(blocks)
    parts = [
        da.from_delayed(future, (n, X.shape[1]), X.dtype, meta=scipy.sparse.csr_matrix((0, 0)))
        for future, n in zip(futures, rows, strict=True)
    ]
    labels = da.from_array(y, chunks=(rows,))
    held = client.persist((da.concatenate(parts), labels))
    wait(held)
    return held


def csr_bytes(X: Any) -> int:
    return X.data.nbytes + X.indices.nbytes + X.indptr.nbytes


def main() -> None:
    chosen = options(__doc__, repeat=3, rows=3_000_000)
    if not DATA.exists():
        print("the data is not here, left out\n")
        return
    X, y, X_test, y_test = split(*read_flights(20_000 if chosen.quick else chosen.rows))
    n, data = len(y), csr_bytes(X) + y.nbytes
    speeds: list[float] = []
    with cluster() as client:
        X_there, y_there = on_cluster(client, X, y)

        def judge(model: Any) -> dict[str, float]:
            if getattr(model, "mode", None) == "sync":  # the first, before BLAS is busy
                speeds.append(read_speed(client))
            if isinstance(model, VowpalWabbit):
                late, passes = model.probabilities("test"), model.passes
            else:
                raw = (
                    X_test @ np.ravel(model.coef_).astype(np.float64)
                    + np.ravel(model.intercept_)[0]
                )
                late, passes = 1 / (1 + np.exp(-raw)), np.max(getattr(model, "n_iter_", np.nan))
            found = {
                "loss": log_loss(y_test, late),
                "auc": roc_auc_score(y_test, late),
                "passes": float(passes),
            }
            return found | seconds_of_a_pass(model)

        contenders = in_each_mode(X_there, y_there)
        contenders[PEER] = lambda turn: LogisticRegression().fit(X, y)
        contenders["scikit-learn SGDClassifier"] = lambda turn: sgd(n, turn).fit(X, y)
        if installed("dask-ml", "dask_ml"):
            contenders["dask-ml Incremental(SGDClassifier)"] = lambda turn: incremental(
                n, turn
            ).fit(X_there, y_there, classes=[0, 1])
            # As sparse.COO and without its normalisation, which makes them dense, it does: 80,000
            # rows took 40 s.
            print("dask-ml LogisticRegression: does not take blocks of scipy.sparse, left out\n")
        if installed("Vowpal Wabbit", "vowpalwabbit"):
            wabbit = VowpalWabbit()
            wabbit.write("train", X, y, seed=0)
            wabbit.write("test", X_test, y_test)
            contenders[f"Vowpal Wabbit, {wabbit.passes} passes"] = lambda turn: wabbit.fit("train")
        medians = take_turns(contenders, chosen.repeat, judge, client)

    print(
        f"{n:,} training rows, {X.shape[1]:,} columns, {megabytes(data)} MB in CSR; "
        f"{len(y_test):,} test rows\n"
    )
    peer = medians[PEER]["seconds"]
    table(
        ("", "seconds", "times faster", "test log loss", "AUC", "peak MB", "passes"),
        (
            (
                name, f"{row['seconds']:.2f}", f"{peer / row['seconds']:.1f}",
                f"{row['loss']:.4f}", f"{row['auc']:.4f}", megabytes(data + row["added"]),
                f"{row['passes']:g}",
            )
            for name, row in medians.items()
        ),
    )  # fmt: skip
    passes = {name: row["pass"] for name, row in medians.items() if "pass" in row}
    roofline(data, passes, float(np.median(speeds)))
    ours = medians["dps sync"]
    bars(
        ("flights: test log loss", ours["loss"], "<=", 0.4657),
        ("flights: times faster than LogisticRegression", peer / ours["seconds"], ">=", 30),
    )


if __name__ == "__main__":
    main()
