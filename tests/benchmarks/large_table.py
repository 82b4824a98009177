"""A table larger than a worker: it trains, and a step costs what it touches.

    python tests/benchmarks/large_table.py [--megabytes N] [--rows N] [--epochs N] [--quick]

Four workers of N megabytes each (`memory_limit`, at which Dask's nanny kills). The table's rows,
of 16 factors and a weight, with Adagrad's state, take 1.5 times that. Rows have 20 ids each, drawn
evenly from as many as the table is to hold. Their memory is the most that a worker's process had
resident, as Dask counts it. Predictions look rows up where pieces of the table lie.

Then the same rows, of few ids, with tables of more and more room: rows a second of the best epoch.
"""

from __future__ import annotations

import logging
import statistics
from typing import Any

import dask
import dask.array as da
import numpy as np
import scipy.sparse
from distributed import Client, LocalCluster

from dps import FMClassifier
from measure import bars, options, table

WORKERS, FIELDS, FACTORS, BATCH, FREE = 4, 20, 16, 4096, 1.3
#: Bytes of a row with its state.
ROW = (FACTORS + 1) * 4 * 2


def some_rows(seed: int, n: int, ids: int, columns: int) -> Any:
    drawn = np.random.default_rng(seed).integers(0, ids, n * FIELDS).astype(np.int32)
    starts = np.arange(0, n * FIELDS + 1, FIELDS, dtype=np.int32)
    return scipy.sparse.csr_matrix((np.ones(len(drawn), np.float32), drawn, starts), (n, columns))


def labels(n: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 2, n)


def machine(max_embeddings: int, epochs: int, **more: Any) -> FMClassifier:
    return FMClassifier(
        FACTORS, max_embeddings=max_embeddings, max_iter=epochs, early_stopping=False, tol=None,
        batch_size=BATCH, optimizer="adagrad", random_state=0, **more,
    )  # fmt: skip


def peak(dask_worker: Any) -> float:
    """The most that this process had resident, in bytes."""
    with open("/proc/self/status") as lines:
        (line,) = [line for line in lines if line.startswith("VmHWM:")]
    return float(line.split()[1]) * 1024


def larger_than_a_worker(limit: int, share: float, rows: int, epochs: int) -> float:
    """Train with a table of such a share of a worker's memory; what the fullest one used of it."""
    room = int(share * limit / ROW)
    ids, parts = int(room / FREE), max(WORKERS, rows // 25_000)
    with (
        LocalCluster(
            n_workers=WORKERS,
            threads_per_worker=1,
            memory_limit=limit,
            dashboard_address=":0",
            silence_logs=logging.ERROR,
        ) as workers,
        Client(workers) as client,
    ):
        make, empty = dask.delayed(some_rows), scipy.sparse.csr_matrix((0, 0), dtype=np.float32)
        each = rows // parts
        X = da.concatenate(
            [
                da.from_delayed(make(k, each, ids, ids), (each, ids), meta=empty)
                for k in range(parts)
            ]
        )
        y = da.from_array(labels(each * parts), chunks=each)
        model = machine(room, epochs).fit(X, y)
        most = max(client.run(peak).values()) / limit
        predicted = model.predict(X).compute()
        assert len(predicted) == each * parts
        speed = each * parts / statistics.median(r["seconds"] for r in model.history_)
        held = len(model.coef_[0])
        table(
            ["4 workers", "of a worker's memory", "rows of the table", "shards", "rows/s"],
            [
                ["table with state", f"{room * ROW / limit:.2f}", f"{held:,} of {room:,}",
                 str(len(model.plan_.shards)), f"{speed:,.0f}"],
                ["fullest worker", f"{most:.2f}", "", "", ""],
            ],
        )  # fmt: skip
    return most


def room_costs_nothing(rows: int, epochs: int, sizes: list[int]) -> float:
    """Rows a second with the largest room, of that with the least; the same ids are touched."""
    ids = sizes[0] // 2
    X, y = some_rows(0, rows, ids, ids), labels(rows)
    found = {}
    for size in sizes:
        model = machine(size, epochs, n_replicas=2).fit(X, y)
        found[size] = rows / min(record["seconds"] for record in model.history_)
    table(
        ["room for rows", "rows/s"],
        [[f"room: {size:,}", f"{speed:,.0f}"] for size, speed in found.items()],
    )
    return found[sizes[-1]] / found[sizes[0]]


def main() -> None:
    chosen = options(__doc__, repeat=1, megabytes=1024, rows=1_600_000, epochs=3)
    rows, share, sizes = chosen.rows, 1.5, [1 << 17, 1 << 20, 1 << 23]
    if chosen.quick:
        rows, share, sizes = 20_000, 0.1, [1 << 12, 1 << 14]
    epochs = 1 if chosen.quick else chosen.epochs
    most = larger_than_a_worker(chosen.megabytes << 20, share, rows, epochs)
    ratio = room_costs_nothing(min(rows, 400_000), epochs, sizes)
    bars(
        ("large table: of a worker's memory", share, ">=", 1.49),
        ("large table: fullest worker", most, "<=", 0.95),
        ("large table: speed with 64 times the room", ratio, ">=", 0.5),
    )


if __name__ == "__main__":
    main()
