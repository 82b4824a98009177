"""Typical user code, for type checkers. CI has mypy and pyright read it; nothing runs it.

A line that ends in ``type: ignore`` is wrong, and both have to say so.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true
from __future__ import annotations

from pathlib import Path
from typing import assert_type

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import scipy.sparse
from distributed import Client, LocalCluster
from numpy.typing import NDArray

import dps
from dps.losses import Huber
from dps.metrics import RowScore, log_loss
from dps.model_selection import PartitionKFold, cross_val_score, train_test_split
from dps.models import Layout, Tensor, check
from dps.optimizers import Adam, AdamW, Cosine
from dps.preprocessing import FrameEncoder


def linear_models(client: Client, X: da.Array, y: da.Array) -> None:
    model = dps.LinearClassifier("hinge", penalty="l1", alpha="cv", client=client)
    assert_type(model.fit(X, y, X_val=X, y_val=y), dps.LinearClassifier)
    assert_type(model.score(X, y), float)
    assert_type(model.partial_fit(X, y, classes=[0, 1]), dps.LinearClassifier)
    dps.LinearRegressor(loss=Huber(), mode=dps.Async(max_delay=4), n_replicas=2, max_iter=10)
    dps.LinearRegressor(optimizer=Adam(0.01), learning_rate=Cosine(0.1, 20.0), tol=None)
    dps.LinearClassifier(mode="asynchronous")  # type: ignore
    dps.LinearClassifier(penalty="l3")  # type: ignore
    dps.LinearClassifier(alpha=None)  # type: ignore
    dps.LinearClassifier(batch_size="all")  # type: ignore
    dps.LinearClassifier(mode=dps.Sync)  # type: ignore


def networks(frame: dd.DataFrame, y: dd.Series, cluster: LocalCluster) -> None:
    network = dps.MLPClassifier((64, 32), "silu", alpha=1e-4, early_stopping="auto")
    network.fit(frame, y, frame["weight"])
    dps.MLPRegressor(64, optimizer=AdamW(weight_decay=0.1), dropout=0.3, client=cluster)
    dps.FMClassifier(8, hidden_layer_sizes=(16,), encoder=FrameEncoder(n_buckets=64))
    dps.FMRegressor(normalize=True, average=False, client="tcp://10.0.0.1:8786")
    dps.MLPClassifier(activation="swish")  # type: ignore
    dps.MLPClassifier(hidden_layer_sizes="large")  # type: ignore
    dps.MLPRegressor(loss="log_loss")  # type: ignore


def local_data(X: NDArray[np.float64], y: list[str], frame: pd.DataFrame) -> None:
    model = dps.LinearClassifier(class_weight="balanced", random_state=0).fit(X, y)
    model.fit(scipy.sparse.csr_array(X), np.array(y), resume=True)
    model.fit(frame, frame["label"])
    model.save(Path("model"))
    dps.load("s3://bucket/model")
    model.fit(7, resume="yes")  # type: ignore


class Line:
    layout = Layout((Tensor("coef", (3,), penalised=True),))


def models_of_ones_own(X: NDArray[np.float64], y: NDArray[np.int64]) -> None:
    check(Line(), X, y, n_samples=20)
    dps.ModelClassifier(Line, optimizer="adam", learning_rate="cosine", max_iter=5).fit(X, y)
    dps.ModelClassifier(Line, scoring=RowScore(lambda y, scores: scores))


def searches(X: da.Array, y: da.Array) -> None:
    cross_val_score(dps.LinearClassifier(), X, y, cv=PartitionKFold(3), scoring="roc_auc")
    train_test_split(X, y, test_size=0.2, random_state=0)
    assert_type(log_loss(y, X, sample_weight=y, labels=[0, 1]), float)


def servers(client: Client) -> None:
    tensors = {"w": np.zeros(3), "t": dps.EmbeddingTable(dim=2, capacity=100)}
    with dps.ParameterServer(tensors, optimizer="adagrad", mirror=True, client=client) as server:
        server.add("w", [1.0], [2])
        assert_type(server.names(), list[str])
        assert_type(dps.ParameterServer.connect("shared"), dps.ParameterServer)
        dps.ServedModel(server).predict(np.zeros((2, 3)))
        dps.ParameterServer(tensors, optimizer="newton")  # type: ignore
        dps.ParameterServer(tensors, n_shards="many")  # type: ignore
        dps.ParameterServer(tensors, mirror="yes")  # type: ignore
        dps.EmbeddingTable(dim=2, init="ones")  # type: ignore
    dps.Checkpoint("s3://bucket/fit", every="60s", keep=3)
