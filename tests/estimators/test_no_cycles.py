"""Memory of a call is freed when it returns, without the garbage collector.

Else a fit would hold a user's partitions on the cluster, and its own parameters, for a while.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from conditions import until
from distributed import Client
from sklearn.model_selection import GridSearchCV

import dps
from dps.preprocessing import FrameEncoder

rng = np.random.default_rng(0)
X = rng.normal(size=(400, 4))
Y = (X[:, 0] > 0).astype(int)
FRAME = pd.DataFrame({"size": X[:, 0], "city": rng.choice(["a", "b", "c"], len(X))})


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # `left` looks at what is made from here on
    gc.disable()
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


def left() -> list[str]:
    """The types of this package of which there are objects in cycles."""
    gc.garbage.clear()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    types = [type(found) for found in gc.garbage]
    return sorted({kind.__qualname__ for kind in types if kind.__module__.startswith("dps")})


def linear(**options: Any) -> dps.LinearClassifier:
    return dps.LinearClassifier(**{"max_iter": 2, "tol": None, "random_state": 0, **options})


CALLS: dict[str, Callable[[Path, Client], Any]] = {
    "a fit": lambda path, client: linear().fit(X, Y),
    "steps": lambda path, client: linear(optimizer="adam", n_replicas=2).fit(X, Y),
    "async": lambda path, client: linear(optimizer="sgd", mode="async", n_replicas=2).fit(X, Y),
    "a network": lambda path, client: dps.MLPClassifier(max_iter=2, early_stopping=True).fit(X, Y),
    "a machine": lambda path, client: dps.FMClassifier(max_iter=2).fit(FRAME, Y),
    "a checkpoint": lambda path, client: linear(checkpoint=dps.Checkpoint(path / "run")).fit(X, Y),
    "auto": lambda path, client: linear(
        optimizer="adam", mode="auto", n_replicas=2, client=client
    ).fit(dask_frame(), dask_labels()),
    "a score": lambda path, client: linear().fit(FRAME, Y).score(FRAME, Y),
    "a search": lambda path, client: GridSearchCV(linear(), {"alpha": [0.1, 1.0]}, cv=2).fit(X, Y),
    "a file": lambda path, client: file_of(linear().fit(FRAME, Y), path / "model"),
    "an error": lambda path, client: refused(),
    "on the cluster": lambda path, client: linear(client=client).fit(dask_frame(), dask_labels()),
    "validation": lambda path, client: linear(client=client, optimizer="sgd").fit(
        dask_frame(), dask_labels(), X_val=FRAME, y_val=Y
    ),
    "a prediction": lambda path, client: linear().fit(FRAME, Y).predict(dask_frame()).compute(),
    "a metric": lambda path, client: dps.metrics.roc_auc_score(
        dask_labels(), linear().fit(FRAME, Y).decision_function(dask_frame()), client=client
    ),
    "an encoder": lambda path, client: FrameEncoder().fit_transform(FRAME),
    "a table": lambda path, client: dps.FMClassifier(
        max_iter=2, max_embeddings=64, client=client, optimizer="adagrad"
    ).fit(dask_frame(), dask_labels()),
    "a served model": lambda path, client: served_model(client),
    "a server": lambda path, client: served(client),
}  # fmt: skip


def dask_frame() -> Any:
    return dd.from_pandas(FRAME, npartitions=2)


def dask_labels() -> Any:
    return dd.from_pandas(pd.Series(Y), npartitions=2)


def served(client: Client) -> None:
    with dps.ParameterServer({"a": np.zeros(3)}, client=client) as server:
        server.push("a", np.ones(3))
        server.pull("a")


def served_model(client: Client) -> None:
    with dps.ParameterServer({}, client=client) as server:
        linear(client=client, server=server).fit(X, Y)
        dps.ServedModel(server).predict(X)


def file_of(model: Any, path: Path) -> Any:
    model.save(path)
    return dps.load(path)


def refused() -> None:
    with pytest.raises(ValueError, match="1 class"):
        linear().fit(X, np.ones(len(X)))


@pytest.mark.parametrize("what", CALLS)
@pytest.mark.usefixtures("no_collector")
def test_no_object_of_a_call_is_in_a_cycle(what: str, tmp_path: Path, client: Client) -> None:
    CALLS[what](tmp_path, client)
    assert left() == []


@pytest.mark.usefixtures("no_collector")
def test_data_that_was_persisted_is_given_back_after_a_fit(client: Client) -> None:
    X, y = client.persist([dask_frame(), dask_labels()])
    held = {future.key for future in client.futures_of([X, y])}
    assert len(held) == 4
    linear(client=client).fit(X, y)
    del X, y
    until(lambda: not held & set(client.futures), "the user's partitions are given back")
