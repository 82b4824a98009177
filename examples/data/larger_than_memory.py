"""A dataframe larger than memory
==============================

Trains on more rows than two small workers can hold::

    pip install -e . && python examples/data/larger_than_memory.py

dps reads the rows once and keeps codes of one or two bytes on the workers' disks. A second thread
encodes them again in each pass, while the first one trains.
"""

import logging
import math
import tempfile
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
import psutil
from distributed import Client, LocalCluster

from dps import LinearClassifier

ROWS_A_FILE = 200_000
CITIES = np.array([f"city {number:03d}" for number in range(200)])
PARTS = {"hour": 24, "weekday": 7, "month": 12, "carrier": 20, "plane": 50, "terminal": 9,
         "crew": 100, "weather": 15, "season": 4}  # fmt: skip
ENCODED = 8 * (2 + len(PARTS)) + 4  # bytes a row: a value and its column for each of its columns
TO_WORK = 130 << 20  # bytes that a worker needs besides what it takes when idle
PAUSED = 0.8  # the part of its limit at which Dask pauses a worker


def idle() -> int:
    """Return the bytes that a worker uses before it has any data."""
    import pyarrow.parquet  # noqa: F401

    import dps  # noqa: F401

    return psutil.Process().memory_info().rss


def little_memory() -> int:
    """Return a memory limit for a worker, in bytes."""
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        (taken,) = client.run(idle).values()
    return int((taken + TO_WORK) / PAUSED)


def write(folder: Path, files: int) -> None:
    """Write trips between cities; some cities, and evenings, are late more often."""
    rng = np.random.default_rng(0)
    slow = rng.normal(size=len(CITIES))
    for number in range(files):
        start, end = rng.integers(len(CITIES), size=(2, ROWS_A_FILE))
        parts = {name: rng.integers(n, size=ROWS_A_FILE, dtype="i1") for name, n in PARTS.items()}
        chance = 1 / (1 + np.exp(1 - slow[start] - slow[end] - (parts["hour"] > 17)))
        late = rng.random(ROWS_A_FILE) < chance
        trips = pd.DataFrame({"start": CITIES[start], "end": CITIES[end], **parts, "late": late})
        trips.to_parquet(folder / f"{number:03d}.parquet")


def main(folder: Path, client: Client) -> None:
    """Train, and print what it took."""
    trips = dd.read_parquet(folder)
    parts = {name: trips[name].astype("category") for name in PARTS}
    X = trips[["start", "end"]].assign(**parts)

    model = LinearClassifier().fit(X, trips["late"])
    named = model.coefficients()
    evening = named["hour_20"] - named["hour_10"]
    print(f"{len(named)} coefficients")
    print(f"an evening adds {evening:.2f} to the log odds; 1.00 in truth")
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    limit = sum(worker["memory_limit"] for worker in workers)
    print(f"the rows take {len(trips) * ENCODED / limit:.1f} times the memory of all workers")


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    logging.getLogger("dps").setLevel(logging.INFO)
    limit = little_memory()
    with (
        tempfile.TemporaryDirectory() as name,
        LocalCluster(
            n_workers=2, threads_per_worker=1, memory_limit=limit, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        write(Path(name), files=math.ceil(1.1 * 2 * limit / (ROWS_A_FILE * ENCODED)))
        main(Path(name), client)

# %%
# It prints::
#
#     641 coefficients
#     an evening adds 1.00 to the log odds; 1.00 in truth
#     the rows take 1.1 times the memory of all workers
