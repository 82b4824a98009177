"""Late flights of 2001 as sparse one-hot rows: dps in each mode against scikit-learn.

    python tests/benchmarks/flights.py [--rows N] [--repeat K]

3,000,000 x 3,926, 8 non-zeros a row, float32; test rows are those whose index is
divisible by 5. dps runs on a LocalCluster of two processes, the training rows a CSR
dask array in 12 chunks that is persisted before the clock starts; everything is at its
defaults and ended by its own stopping rule. Rows of one run are interleaved; medians.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import scipy.sparse
from distributed import Client, LocalCluster
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from dps import LinearClassifier
from dps.modes import MODES

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "flights-3m.parquet"


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
    return client.persist(da.concatenate(parts)), client.persist(labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    X, y, X_test, y_test = split(*read_flights(options.rows))
    print(f"{X.shape[0]:,} training rows, {X.shape[1]:,} columns, {len(y_test):,} test rows")
    results: dict[str, list[tuple[float, float, float, int]]] = {}

    def record(name: str, model: Any, *data: Any) -> None:
        began = time.perf_counter()
        model.fit(*data)
        seconds = time.perf_counter() - began
        late = model.predict_proba(X_test)[:, 1]
        epochs = int(np.max(model.n_iter_))
        scores = log_loss(y_test, late), roc_auc_score(y_test, late)
        results.setdefault(name, []).append((seconds, *scores, epochs))

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # the peer stops at its limit of iterations
        data = on_cluster(client, X, y)
        for repeat in range(options.repeat):
            for mode in MODES:
                record(f"dps {mode}", LinearClassifier(mode=mode, random_state=repeat), *data)
            record("scikit-learn LogisticRegression", LogisticRegression(), X, y)

    peer = statistics.median(row[0] for row in results["scikit-learn LogisticRegression"])
    print("| | seconds | times faster | test log loss | AUC | epochs |")
    print("|---|---|---|---|---|---|")
    for name, rows in results.items():
        seconds, loss, auc, epochs = (
            statistics.median(column) for column in zip(*rows, strict=True)
        )
        print(
            f"| {name} | {seconds:.2f} | {peer / seconds:.1f} | {loss:.4f} | {auc:.4f} "
            f"| {epochs:g} |"
        )


if __name__ == "__main__":
    main()
