"""The loop without the interpreter has the bits of the loop in Python."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from cases import pairs
from configure import placed
from groups import MODES
from hypothesis import given, strategies as st

import dps
from dps._runtime.loop import shares
from dps.errors import NonFiniteError
from dps.losses import LogLoss
from dps.losses.classification import Softmax
from dps.losses.names import LOSSES
from dps.models.linear import LinearModel
from dps.optimizers import OPTIMIZERS, Momentum, Optimizer
from dps.training.replica import replica
from dps.training.replica.channel import Channel


def problem(rows: int = 397, features: int = 37, classes: int = 2, dtype: Any = "f8") -> Any:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, features)).astype(dtype)
    y = np.argmax(X[:, :classes] + rng.gumbel(size=(rows, classes)), axis=1)
    return X, y, rng.uniform(0.1, 2.0, rows)


def train(mode: Any, X: Any, y: Any, weight: Any = None, **options: Any) -> Any:
    model = dps.LinearClassifier(
        mode=mode, alpha=0.01, learning_rate=0.1, max_iter=3, tol=None, random_state=3,
        **placed({"optimizer": "sgd", "batch_size": 32, "n_replicas": 3, **options}),
    ).fit(X, y, weight)  # fmt: skip
    return model


def facts(model: Any) -> Any:
    """Facts that must not depend on the way of computation."""
    history = [{k: v for k, v in r.items() if "second" not in k} for r in model.history_]
    return model.coef_.tobytes(), np.asarray(model.intercept_).tobytes(), repr(history)


def in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have models and optimizers take part as those do that are written in Python."""
    monkeypatch.setattr(LinearModel, "kernel", property(lambda model: None))
    monkeypatch.setattr(Optimizer, "native", property(lambda optimizer: None))


def both(monkeypatch: pytest.MonkeyPatch, *args: Any, **options: Any) -> None:
    native = train(*args, **options)
    in_python(monkeypatch)
    python = train(*args, **options)
    monkeypatch.undo()
    assert facts(native) == facts(python)


def replicas(mode: str) -> int:
    return 1 if mode == "async" else 3  # several in async are a race


@pairs(
    mode=list(MODES),
    classes=[2, 4],
    sparse=[False, True],
    dtype=["f4", "f8"],
)
def test_bits_on_dense_and_sparse_rows(
    monkeypatch: Any, mode: str, classes: int, sparse: bool, dtype: str
) -> None:
    X, y, weight = problem(classes=classes, dtype=dtype)
    X = scipy.sparse.csr_matrix(np.where(np.abs(X) > 1, X, 0)) if sparse else X
    both(monkeypatch, mode, X, y, weight, n_replicas=replicas(mode))


@pairs(
    mode=list(MODES),
    average=[False, 5],
    optimizer=[*OPTIMIZERS, Momentum(nesterov=True)],
)
def test_bits_of_every_optimizer(monkeypatch: Any, mode: str, average: Any, optimizer: Any) -> None:
    X, y, _ = problem()
    both(
        monkeypatch, mode, X, y, optimizer=optimizer, average=average,
        n_replicas=replicas(mode), penalty="elasticnet",
    )  # fmt: skip


@pairs(
    mode=list(MODES),
    n_shards=[1, 4],
)
def test_bits_on_any_shards(monkeypatch: Any, mode: str, n_shards: int) -> None:
    X, y, weight = problem(features=1100)
    both(
        monkeypatch, mode, X, y, weight, n_shards=n_shards, n_replicas=replicas(mode),
        optimizer="momentum",
    )  # fmt: skip


@pytest.mark.parametrize("n_replicas", [1, 3])
@pytest.mark.parametrize("n_shards", [1, 2])
@pytest.mark.parametrize("mode", ["sync", "allreduce"])
def test_bits_on_wide_vectors_with_one_replica_and_several(
    monkeypatch: Any, mode: str, n_shards: int, n_replicas: int
) -> None:
    """Vectors are averaged and used a part at a time, and one rank alone fills no slot."""
    X, y, weight = problem(rows=70, features=5000)
    both(
        monkeypatch, mode, X, y, weight, n_shards=n_shards, n_replicas=n_replicas,
        optimizer="adagrad",
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["int8", "frame", "columns first", "wide indices"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_bits_on_rows_that_are_not_read_where_they_lie(
    monkeypatch: Any, shuffle: bool, kind: str
) -> None:
    X, y, weight = problem()
    if kind == "int8":
        X = (20 * X).astype(np.int8)
    elif kind == "frame":
        X = pd.DataFrame(X).add_prefix("x").assign(more=np.arange(len(X)) % 7)
    elif kind == "columns first":
        X = np.asfortranarray(X)
    else:
        X = scipy.sparse.csr_array(X)
        X.indices, X.indptr = X.indices.astype("i8"), X.indptr.astype("i8")
    both(monkeypatch, "sync", X, y, weight, shuffle=shuffle)


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("batch_size", [1, 7, 5000])
def test_bits_of_batches_of_any_size_with_rows_held_out(
    monkeypatch: Any, mode: str, batch_size: int
) -> None:
    X, y, _ = problem(rows=151, features=3)
    both(
        monkeypatch, mode, X, y, batch_size=batch_size, n_replicas=replicas(mode),
        early_stopping=True, validation_fraction=0.2,
    )  # fmt: skip


@pytest.mark.parametrize("name", [n for n in LOSSES if n != "softmax"])
def test_bits_of_every_loss(monkeypatch: Any, name: str) -> None:
    X, y, weight = problem(classes=3)
    if LOSSES[name].task == "classification":
        both(monkeypatch, "sync", X, y, weight, loss=name)
        return
    options: Any = {"loss": name, "random_state": 0, "max_iter": 3, "tol": None, "n_replicas": 2}
    y = y + 1  # of a gamma loss they are positive
    native = dps.LinearRegressor(optimizer="sgd", **options).fit(X, y, weight)
    in_python(monkeypatch)
    python = dps.LinearRegressor(optimizer="sgd", **options).fit(X, y, weight)
    assert facts(native) == facts(python)


@pytest.mark.parametrize("mode", list(MODES))
def test_what_is_not_finite_is_named_at_the_same_step(monkeypatch: Any, mode: str) -> None:
    X, y, _ = problem()
    told = []
    for native in (True, False):
        if not native:
            in_python(monkeypatch)
        with pytest.raises(NonFiniteError) as error:
            dps.LinearRegressor(
                mode=mode, optimizer="sgd", learning_rate=1e30, n_replicas=1, random_state=0,
                batch_size=32, tol=None,
            ).fit(X, y.astype(float))  # fmt: skip
        told.append(str(error.value))
    assert told[0] == told[1]


def test_a_method_in_python_is_not_hidden_by_an_inherited_kernel() -> None:
    class Slow(Momentum):
        def update(self, *args: Any, **options: Any) -> bool:
            return super().update(*args, **options)

    class Scaled(LogLoss):
        def evaluate(self, y: Any, raw: Any, weight: Any, out: Any) -> float:
            return super().evaluate(y, raw, weight, out)

    class Again(Slow):
        kernel = Momentum().kernel

    class Mixin:
        update = Slow.update

    class Mixed(Mixin, Momentum):
        pass

    class Late(Mixed):
        pass

    class Own(LinearModel):
        def loss_gradient(self, *args: Any, **options: Any) -> float:
            return super().loss_gradient(*args, **options)

    assert Slow().native is None
    assert Again().native is not None
    assert Mixed().native is None
    assert Late().native is None
    assert LinearModel(2, 1, LogLoss()).kernel is not None
    assert Own(2, 1, LogLoss()).kernel is None
    assert Scaled().native is None
    assert Softmax().native is not None
    raw, out = np.zeros((1, 1)), np.empty((1, 1))
    assert Scaled().evaluate(np.ones(1), raw, None, out) == LogLoss().evaluate(
        np.ones(1), raw, None, out
    )
    params, state = np.ones(2), np.zeros((1, 2))
    assert Slow().update(params, np.ones(2), state, step=1, lr=0.5, l1=0.0, l2=0.0)
    assert (params == 0.5).all()


def test_the_interpreter_is_free_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread sees step after step; if it had to wait, it would see ends of groups only."""
    made: list[Channel] = []

    class Seen(Channel):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(replica, "Channel", Seen)
    X, y, _ = problem(rows=20_000, features=50)
    model = dps.LinearClassifier(
        optimizer="sgd", n_replicas=2, batch_size=2, max_iter=2, tol=None, learning_rate=0.01
    )
    seen: set[int] = set()
    # A busy machine shows few steps a fit. The ends of groups are the same few in every fit.
    while len(seen) <= 50:
        made.clear()
        thread = threading.Thread(target=model.fit, args=(X, y))
        thread.start()
        while thread.is_alive():
            seen.update(channel.steps for channel in made[:1])
        thread.join()
        assert model.n_iter_ == 2


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9), st.integers(0, 450))
def test_shares_are_proportional_and_complete(lefts: list[int], wanted: int) -> None:
    total = sum(lefts)
    wanted = min(wanted, total)
    taken = shares(lefts, wanted)
    assert sum(taken) == wanted
    if not wanted:
        return
    for left, share in zip(lefts, taken, strict=True):
        assert left * wanted // total <= share <= min(left, left * wanted // total + 1)
    remainders = [left * wanted % total for left in lefts]
    extra = [share - left * wanted // total for left, share in zip(lefts, taken, strict=True)]
    for a, b in itertools.permutations(range(len(lefts)), 2):
        if extra[a] > extra[b]:
            assert (remainders[a], -a) > (remainders[b], -b)
