"""The memory that a fit takes, by kind of data, and by the size of a model.

    python tests/benchmarks/memory.py [--size MB] [--repeat K] [--quick]

Sum of PSS over the processes of a fresh LocalCluster of two workers, scheduler and client
included: idle, with libraries imported; with the data persisted; and at the peak of a fit of a
few epochs, at its defaults for the rest. "times the data" is what the peak is above idle, by the
bytes of X and y.

Networks are trained on little data, in a process of their own or on such a cluster: "times the
weights" is what the peak is above these processes before the fit. Linux only.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import scipy.sparse
from distributed import futures_of, wait
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier as Peer

from dps import LinearClassifier, MLPClassifier
from measure import MB, Peak, bars, cluster, megabytes, memory, options, processes, table, timed

FEATURES, NONZEROS, BLOCKS, EPOCHS = 100, 8, 10, 4
KINDS = ("CSR float32", "float64", "float32", "int8", "dataframe float32")
MODES = ("sync", "async")
_CLUSTER = "two workers of a cluster"


def row_bytes(kind: str) -> int:
    """Bytes of a row of X and y."""
    if kind.startswith("CSR"):
        return NONZEROS * (4 + 4) + 4 + 1
    return FEATURES * np.dtype(kind.split()[-1]).itemsize + 1


def block(kind: str, rows: int, seed: int) -> Any:
    """Rows of X."""
    random = np.random.default_rng(seed)
    if kind.startswith("CSR"):
        data = random.standard_normal(rows * NONZEROS, dtype=np.float32)
        indices = random.integers(0, 4_000 // NONZEROS, (rows, NONZEROS), dtype=np.int32)
        indices += np.arange(NONZEROS, dtype=np.int32) * (4_000 // NONZEROS)
        indptr = np.arange(0, rows * NONZEROS + 1, NONZEROS, dtype=np.int32)
        return scipy.sparse.csr_matrix((data, indices.ravel(), indptr), (rows, 4_000))
    if kind == "int8":
        return random.integers(-3, 4, (rows, FEATURES), dtype=np.int8)
    X = random.standard_normal((rows, FEATURES), dtype=kind.split()[-1])
    return pd.DataFrame(X) if kind.startswith("dataframe") else X


def labels(X: Any) -> Any:
    """Labels of a block."""
    if isinstance(X, pd.DataFrame):
        return pd.Series((X[0] + X[1] > 0).astype(np.int8), name="y")
    return (np.asarray(X[:, :500].sum(axis=1)).ravel() > 0).astype(np.int8)


def persist(client: Any, kind: str, rows: int) -> tuple[Any, Any]:
    """X and y as Dask collections, half on each worker."""
    n = rows // BLOCKS
    workers = sorted(client.nthreads())
    Xs, ys = [], []
    for number in range(BLOCKS):
        pin = {"workers": [workers[number % len(workers)]], "allow_other_workers": False}
        Xs.append(client.submit(block, kind, n, number, **pin))
        ys.append(client.submit(labels, Xs[-1], **pin))
    wait(Xs + ys)
    if kind.startswith("dataframe"):
        small = block(kind, 1, 0)
        X, y = dd.from_delayed(Xs, meta=small), dd.from_delayed(ys, meta=labels(small))
    else:
        small = block(kind, 1, 0)
        X = da.concatenate(
            [da.from_delayed(part, (n, small.shape[1]), small.dtype, meta=small[:0]) for part in Xs]
        )
        y = da.concatenate([da.from_delayed(part, (n,), np.int8) for part in ys])
    held = client.persist((X, y))
    wait(held)
    return held


def await_forgotten(client: Any, held: Any) -> None:
    """A block that was persisted elsewhere is held twice until its first task is forgotten."""
    keys = {future.key for future in futures_of(held)}
    for _ in range(500):
        if set().union(*client.has_what().values()) == keys:
            return
        time.sleep(0.01)
    raise RuntimeError("the workers hold more than what was persisted")


def measure(kind: str, mode: str, size: float) -> tuple[float, float, float]:
    """Bytes of X and y, of memory above idle before the fit, and at its peak."""
    rows = int(size / row_bytes(kind))
    with cluster() as client:
        pids = processes(client)
        idle = memory(pids)
        X, y = persist(client, kind, rows)
        await_forgotten(client, (X, y))
        with Peak(pids) as watch:
            seconds, _ = timed(
                LinearClassifier(mode=mode, max_iter=EPOCHS, random_state=0).fit, X, y
            )
        print(f"{kind}, {mode}: {seconds:.1f} s", file=sys.stderr, flush=True)
        return rows * row_bytes(kind), watch.before - idle, watch.peak - idle


def networks(units: int) -> dict[str, Callable[[], Any]]:
    """Estimators of large networks."""
    layers, steps = (units, units), {"max_iter": 2, "random_state": 0, "alpha": 1e-4}
    ours = {"tol": None, "early_stopping": False, "embedding_size": 0, **steps}
    return {
        "one replica": lambda: MLPClassifier(layers, n_replicas=1, **ours),
        "two replicas": lambda: MLPClassifier(layers, n_replicas=2, **ours),
        "one replica, early stopping": lambda: MLPClassifier(
            layers, n_replicas=1, **{**ours, "early_stopping": True}
        ),
        "scikit-learn": lambda: Peer(layers, batch_size=200, **steps),
        _CLUSTER: lambda: MLPClassifier(layers, n_replicas=2, **ours),
    }


def fit_network(name: str, units: int) -> float:
    """Train a network on little data; the bytes of its weights in float32."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(2000, 300)).astype(np.float32), np.arange(2000) % 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = networks(units)[name]().fit(X, y)
    return 4.0 * sum(weights.size for weights in model.coefs_)


def train(name: str, units: int, parent: Any) -> None:
    """Train a network in this process, once the parent has said so."""
    fit_network(name, 8)
    parent.send(True)
    parent.recv()
    parent.send(fit_network(name, units))


def measure_network(name: str, units: int) -> tuple[float, float]:
    """Bytes of the weights in float32, and of memory above that before the fit, at its peak."""
    if name == _CLUSTER:
        with cluster() as client:
            fit_network(name, 8)
            with Peak(processes(client)) as watch:
                weights = fit_network(name, units)
        return weights, watch.added
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=train, args=(name, units, there))
    process.start()
    try:
        here.recv()
        with Peak([process.pid]) as watch:
            here.send(True)
            weights = here.recv()
        return weights, watch.added
    finally:
        process.join()


def main() -> None:
    chosen = options(__doc__, repeat=1, size=500)
    size = MB * (5 if chosen.quick else chosen.size)
    # Quickly: one of each container.
    kinds, modes = (KINDS[::2], MODES[:1]) if chosen.quick else (KINDS, MODES)
    rows, asked = [], []
    if not chosen.quick:
        *_, peak = measure("float32", "sync", MB)
        print(f"a fit of 1 MB: {megabytes(peak)} MB above idle at its peak\n")
    for kind in kinds:
        for mode in modes:
            runs = [measure(kind, mode, size) for _ in range(chosen.repeat)]
            data, before, peak = (statistics.median(column) for column in zip(*runs, strict=True))
            columns = megabytes(data), megabytes(before), megabytes(peak), f"{peak / data:.2f}"
            rows.append((f"{kind}, {mode}", *columns))
            asked.append((f"memory, {kind}, {mode}: times the data", peak / data, "<=", 1.3))
    table(("", "data, MB", "above idle before the fit", "at its peak", "times the data"), rows)
    print()
    rows = []
    for name in [*networks(8)][:: 3 if chosen.quick else 1]:
        units = 64 if chosen.quick else 4096
        runs = [measure_network(name, units) for _ in range(chosen.repeat)]
        weights, added = (statistics.median(column) for column in zip(*runs, strict=True))
        rows.append((name, megabytes(weights), megabytes(added), f"{added / weights:.1f}"))
        if (most := {"one replica": 8, "two replicas": 12}.get(name)) and not chosen.quick:
            asked.append((f"memory, {name}: times the weights", added / weights, "<=", most))
    table(("network", "weights, MB", "at its peak", "times the weights"), rows)
    bars(*asked)


if __name__ == "__main__":
    main()
