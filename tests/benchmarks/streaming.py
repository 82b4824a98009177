"""Late flights of several years as a dataframe four times as large as the cluster's memory.

    python tests/benchmarks/streaming.py [--copies N] [--limit MIB] [--repeat K] [--quick]

The flights of 2001 over and over again in parquet files of 200,000 rows, with strings, parts of
the date and the distance (see encode.py), on a LocalCluster of two processes with a memory limit:
their encoded rows are four times as large as both limits together. "read and encode" has Dask
read and encode each partition three times, with an encoder that is fitted already, and keep
nothing. dps takes three epochs of stochastic steps from the file to the model, reading for
categories included: keeping what fits, on disk only, and nothing at all; and L-BFGS at its
defaults. Memory is the resident memory that Dask holds against the limit; a worker is paused
where Dask says so.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster
from sklearn.metrics import log_loss

from dps import LinearClassifier
from dps.preprocessing import FrameEncoder
from encode import known, late
from flights import DATA, csr_bytes
from measure import Watch, bars, options, table, timed

EPOCHS, ROWS_A_FILE, WORKERS = 3, 200_000, 2


class Health(Watch):
    """The largest memory of any worker, and its longest pause, while a block runs."""

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__(every=0.05)
        self._scheduler = cluster.scheduler
        self._paused: dict[str, float] = {}
        self.memory = self.pause = 0.0

    def look(self) -> None:
        for worker in list(self._scheduler.workers.values()):
            self.memory = max(self.memory, float(worker.memory.process))
            if worker.status.name != "paused":
                self._paused.pop(worker.address, None)
                continue
            since = self._paused.setdefault(worker.address, time.monotonic())
            self.pause = max(self.pause, time.monotonic() - since)


@contextmanager
def small_cluster(limit: int) -> Iterator[tuple[LocalCluster, Client]]:
    """Yield two processes with one thread and `limit` bytes each, which report often."""
    with (
        dask.config.set({"distributed.admin.system-monitor.interval": "50ms",
                         "distributed.worker.heartbeat-interval-multiplier": 1}),
        LocalCluster(
            n_workers=WORKERS, threads_per_worker=1, memory_limit=limit, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):  # fmt: skip
        yield cluster, client


def write(folder: Path, copies: int, rows: int) -> pd.DataFrame:
    """Training rows as files, many times; the test rows."""
    frame = pd.read_parquet(DATA).iloc[:rows]
    test = np.arange(len(frame)) % 5 == 0
    train = frame[~test].reset_index(drop=True)
    for copy in range(copies):
        for start in range(0, len(train), ROWS_A_FILE):
            part = train.iloc[start : start + ROWS_A_FILE]
            part.to_parquet(folder / f"{copy:03d}-{start // ROWS_A_FILE:03d}.parquet")
    return frame[test].reset_index(drop=True)


def n_values(block: Any) -> np.ndarray[Any, Any]:
    return np.array([[block.nnz]])


def read_and_encode(folder: Path, encoder: FrameEncoder) -> int:
    """Three passes that keep nothing; the values seen."""
    total = 0
    for _ in range(EPOCHS):
        blocks = encoder.transform(known(dd.read_parquet(folder)))
        total += int(blocks.map_blocks(n_values, chunks=(1, 1), dtype=int).sum().compute())
    return total


def fit(folder: Path, cache: str | None = "auto", **options: Any) -> LinearClassifier:
    frame = dd.read_parquet(folder)
    model = LinearClassifier(random_state=0, **options)
    with dask.config.set({"dps.cache": cache}):
        return model.fit(known(frame), late(frame))


def main() -> None:
    chosen = options(__doc__, repeat=1, copies=26, limit=512)
    if not DATA.exists():
        print("the data is not here, left out\n")
        return
    copies, rows = (1, 5_000) if chosen.quick else (chosen.copies, 3_000_000)
    limit = chosen.limit * 2**20
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        test = write(folder, copies, rows)
        encoder = FrameEncoder().fit(known(test))
        data = csr_bytes(encoder.transform(known(test))) / len(test) + 1
        data *= 4 * len(test) * copies
        steps = {"max_iter": EPOCHS, "tol": None}
        contenders: dict[str, Callable[[], Any]] = {
            "read and encode": partial(read_and_encode, folder, encoder),
            "dps": partial(fit, folder, **steps),
            "dps, cache='disk'": partial(fit, folder, cache="disk", **steps),
            "dps, cache=None": partial(fit, folder, cache=None, **steps),
            "dps, L-BFGS": partial(fit, folder),
        }
        if chosen.quick:
            del contenders["dps, cache=None"], contenders["dps, L-BFGS"]
        seconds, health = defaultdict(list), {}
        losses: dict[str, str] = {}
        lost = 0
        for _ in range(chosen.repeat):
            for name, contender in contenders.items():
                with small_cluster(limit) as (cluster, client):
                    before = set(client.scheduler_info(n_workers=-1)["workers"])
                    with Health(cluster) as watch:
                        took, made = timed(contender)
                    lost += before != set(client.scheduler_info(n_workers=-1)["workers"])
                print(f"{name}: {took:.1f} s", file=sys.stderr, flush=True)
                seconds[name].append(took)
                health[name] = watch
                if isinstance(made, LinearClassifier):
                    found = made.predict_proba(known(test))[:, 1]
                    losses[name] = f"{log_loss(late(test), found):.4f}"
                    losses[name] += f" ({made.n_iter_})"
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    alone = medians["read and encode"]
    print(f"{data / 1e9:.2f} GB encoded, {data / (WORKERS * limit):.1f} times the memory limits\n")
    table(
        ("three passes", "seconds", "times", "peak memory, of the limit", "longest pause, s",
         "test log loss (epochs)"),
        (
            (name, f"{took:.1f}", f"{took / alone:.2f}", f"{health[name].memory / limit:.0%}",
             f"{health[name].pause:.1f}", losses.get(name, ""))
            for name, took in medians.items()
        ),
    )  # fmt: skip
    ours = health["dps"]
    bars(
        ("streaming: times reading and encoding alone", medians["dps"] / alone, "<=", 1.3),
        ("streaming: peak memory, of the limit", ours.memory / limit, "<=", 1),
        ("streaming: longest pause, s", ours.pause, "<=", 5),
        ("streaming: workers lost", float(lost), "<=", 0),
    )


if __name__ == "__main__":
    main()
