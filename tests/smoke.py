"""Use an installed dps once: for wheels, in an environment with nothing but its dependencies.

    python tests/smoke.py

Three families, a dataframe, a cluster of two processes in three modes, a killed worker, files.
"""

import os
import signal
import tempfile
import threading

import numpy as np
import pandas as pd
from dask import array as da, dataframe as dd
from distributed import Client, LocalCluster
from sklearn.metrics import r2_score

import dps


def here() -> None:
    """Fit each family in this process, and each again from its file."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2_000, 5))
    y = X[:, 0] - X[:, 1] * X[:, 2]
    for cls in (dps.LinearRegressor, dps.MLPRegressor, dps.FMRegressor):
        model = cls(random_state=0).fit(X, y)
        with tempfile.TemporaryDirectory() as folder:
            model.save(f"{folder}/model")
            assert (dps.load(f"{folder}/model").predict(X) == model.predict(X)).all()
        print(f"{cls.__name__}: R^2 {r2_score(y, model.predict(X)):.3f}")
        assert cls is dps.LinearRegressor or r2_score(y, model.predict(X)) > 0.9


def frame() -> None:
    """Fit a Dask dataframe with strings and a missing number."""
    colour = np.tile(["red", "green", "blue", "blue"], 250)
    size = np.where(np.arange(1_000) % 10, np.arange(1_000) % 7, np.nan)
    rows = pd.DataFrame({"colour": colour, "size": size, "y": colour == "red"})
    table = dd.from_pandas(rows, npartitions=4)
    model = dps.LinearClassifier(random_state=0).fit(table[["colour", "size"]], table["y"])
    assert model.score(table[["colour", "size"]], table["y"]) == 1
    print(f"a frame: columns {list(model.encoder_.get_feature_names_out())}")


def modes(client: Client) -> None:
    """Fit on the cluster's processes."""
    X = da.random.default_rng(0).normal(size=(20_000, 10), chunks=(2_500, 10)).persist()
    y = (X[:, 0] > X[:, 1]).astype("int8").persist()
    for mode in ("sync", "async", "allreduce"):
        model = dps.LinearClassifier(mode=mode, random_state=0).fit(X, y)
        assert len(model.plan_.workers) == 2
        assert model.score(X, y) > 0.95
        print(f"mode={mode!r}: accuracy {model.score(X, y):.3f}")


def loss(client: Client) -> None:
    """Kill a worker while it trains."""
    X = da.random.default_rng(0).normal(size=(20_000, 10), chunks=(2_500, 10))
    y = (X[:, 0] > X[:, 1]).astype("int8")
    pids, struck = sorted(client.run(os.getpid).values()), threading.Event()

    def strike(event: tuple) -> None:
        if event[1]["kind"] == "replicas" and not struck.is_set():
            struck.set()
            os.kill(pids[1], signal.SIGKILL)

    client.subscribe_topic("dps", strike)
    model = dps.LinearClassifier(optimizer="adam", batch_size=100, max_iter=2_000, tol=None)
    model.fit(X, y)
    assert struck.is_set()
    print(model.fit_report_)
    assert model.n_iter_ == 2_000
    assert model.score(X, y) > 0.95


if __name__ == "__main__":
    print(f"dps {dps.__version__}, {dps.__file__}")
    here()
    frame()
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        modes(client)
        loss(client)
