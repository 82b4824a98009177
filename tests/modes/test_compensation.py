"""Stale gradients by the papers' formulas: age, and DC-ASGD, for a replayed order of events."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from cases import pairs
from compiled import compensate_delay
from configure import placed

import dps
from dps._kernels.optimizers import KINDS_OF_RUNS
from dps.modes import Mode
from dps.optimizers import SGD, Adagrad, Constant, Momentum, Optimizer
from dps.optimizers.update import Rates, Update
from dps.training.plan import batches
from tests.harness.groups import Group

SIZE, RANKS, RATE = 11, 3, 0.2
STRENGTH = 0.7

#: Who pushes, in turn: fresh gradients and gradients up to seven updates old.
ORDER = [0, 0, 1, 2, 2, 2, 2, 0, 1, 0, 0, 0, 1, 0, 2, 1, 1, 2, 0, 2]

#: Shards, and the (rank, shard) that there is TCP between.
WAYS = [(1, ()), (3, ((0, 0), (0, 1), (0, 2), (1, 1)))]

MODES = {
    "age": dps.Async(compensation="age"),
    "delay": dps.Async(compensation="delay", compensation_strength=STRENGTH),
    "both": dps.Async(compensation="delay", compensation_strength=STRENGTH, max_delay=40),
}


class Replayed:
    """The formulas in NumPy: what a shard holds, and what each rank has pulled of it."""

    def __init__(self, how: str, optimizer: Optimizer, dtype: str) -> None:
        self.how, self.optimizer = how, optimizer
        self.params = np.zeros(SIZE, dtype)
        self.state = np.zeros((optimizer.state_rows, SIZE), dtype)
        self.version = 0
        self.pulled = {rank: (self.params.copy(), 0) for rank in range(RANKS)}

    def pull(self, rank: int) -> Any:
        self.pulled[rank] = self.params.copy(), self.version
        return self.pulled[rank][0]

    def push(self, rank: int, grad: Any, at: Any = slice(None)) -> None:
        """A mean gradient, at some keys."""
        pulled, based = self.pulled[rank]
        rate = RATE
        if self.how == "age":
            rate = RATE / max(1, self.version - based)
        else:
            grad = grad + np.array(STRENGTH, grad.dtype) * grad * grad * (self.params - pulled)[at]
        self.version += 1
        part, state = self.params[at].copy(), self.state[:, at].copy()
        assert self.optimizer.update(part, grad, state, step=self.version, lr=rate, l1=0.0, l2=0.0)
        self.params[at], self.state[:, at] = part, state


def gradient_at(params: Any, number: int) -> Any:
    rng = np.random.default_rng(number)
    return np.sin(params + rng.normal(size=SIZE)).astype(params.dtype)


@pytest.mark.parametrize(("n_shards", "far"), WAYS)
@pairs(
    how=MODES,
    optimizer=[SGD(), Momentum(momentum=0.8), Adagrad()],
    dtype=["float64", "float32"],
)
def test_updates_follow_the_formula(
    how: str, n_shards: int, far: Any, optimizer: Optimizer, dtype: str
) -> None:
    wanted = Replayed(how, optimizer, dtype)
    options: Any = {"far": far, "dtype": dtype, "optimizer": optimizer}
    with Group(MODES[how], RANKS, SIZE, n_shards=n_shards, rate=RATE, **options) as group:
        for window in group.windows:
            window.store.state[:] = 0.5
        wanted.state[:] = 0.5
        for channel in group.channels:
            channel.pull()
        for number, rank in enumerate(ORDER):
            channel = group.channels[rank]
            np.testing.assert_allclose(channel.params, wanted.pulled[rank][0], rtol=1e-4)
            mean = gradient_at(wanted.pulled[rank][0], number)
            channel.push_pull(mean * 4, 4, 0.0)
            wanted.push(rank, mean)
            wanted.pull(rank)
        tolerance = 1e-12 if dtype == "float64" else 1e-4
        np.testing.assert_allclose(group.channels[0].pull(), wanted.params, rtol=tolerance)


@pytest.mark.parametrize("optimizer", [SGD(), Adagrad()])
@pytest.mark.parametrize(("n_shards", "far"), WAYS)
@pytest.mark.parametrize("how", ["age", "delay"])
def test_updates_by_keys_follow_the_formula(
    how: str, n_shards: int, far: Any, optimizer: Optimizer
) -> None:
    rates = Rates(Constant(RATE), len(ORDER), epochs=0, version=0, max_epochs=1)
    wanted = Replayed(how, optimizer, "float64")
    wanted.state[:] = 0.5
    rng = np.random.default_rng(0)
    options: Any = {"far": far, "optimizer": optimizer, "keyed": rates}
    with Group(MODES[how], RANKS, SIZE, n_shards=n_shards, **options) as group:
        for window in group.windows:
            window.store.state[:] = 0.5
        touched = [rng.permutation(SIZE)[:5] for _ in range(RANKS)]

        def pull(rank: int) -> None:
            step = group.channels[rank].step
            step.begin_epoch(0)
            step.keys.begin()
            step.keys.add(touched[rank].tolist())
            assert step.pull_touched() == "ran"
            at = wanted.pull(rank)[touched[rank]]
            np.testing.assert_allclose(step.touched, at, rtol=1e-12)

        for rank in range(RANKS):
            pull(rank)
        for number, rank in enumerate(ORDER):
            at = touched[rank]
            mean = gradient_at(wanted.pulled[rank][0], number)[at]
            values = np.zeros(SIZE)
            values[: len(at)] = mean * 3
            assert group.channels[rank].step.push_gradient(values, 3, RATE) == "ran"
            assert group.channels[rank].step.wait_for_answers() == "ran"
            wanted.push(rank, mean, at)
            touched[rank] = rng.permutation(SIZE)[: rng.integers(1, SIZE)]
            pull(rank)
        whole = np.empty((1, SIZE))
        for shard, window in enumerate(group.windows):
            group.placement.put(shard, window.store.params[None], whole)
        np.testing.assert_allclose(whole[0], wanted.params, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [0, 1, 7, 64, 1000])
def test_the_kernel_is_its_formula(n: int, dtype: str) -> None:
    rng = np.random.default_rng(n)
    grad, now, pulled = rng.normal(size=(3, n)).astype(dtype)
    wanted = grad + np.array(0.3, dtype) * grad * grad * (now - pulled)
    compensate_delay(grad, now, pulled, 0.3)
    np.testing.assert_allclose(grad, wanted, rtol=4 * np.finfo(dtype).eps)


def fitted(mode: Mode | str, data: Any, **options: Any) -> dps.LinearClassifier:
    given = {"optimizer": "momentum", "max_iter": 3, "tol": None, "random_state": 0}
    given = placed({**given, **options})
    return dps.LinearClassifier(mode=mode, batch_size=8, **given).fit(*data)


def problem(sparse: bool) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = scipy.sparse.random_array((800, 300), density=0.03, format="csr", random_state=rng)
    y = (X @ rng.normal(size=300) > 0).astype(int)
    return scipy.sparse.csr_array(X) if sparse else X.toarray(), y


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "by keys"])
@pytest.mark.parametrize("how", ["age", "delay"])
def test_one_replica_is_never_stale_and_so_has_the_bits_of_async(
    how: str, sparse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "_COST_OF_A_KEY", 0.0)
    data = problem(sparse)
    alone = fitted(MODES[how], data, n_replicas=1)
    np.testing.assert_array_equal(alone.coef_, fitted("async", data, n_replicas=1).coef_)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "by keys"])
@pytest.mark.parametrize("how", MODES)
def test_several_replicas_learn_and_show_how_far_apart_they_were(
    how: str, sparse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "_COST_OF_A_KEY", 0.0)
    model = fitted(MODES[how], problem(sparse), n_replicas=4, n_shards=3)
    assert model.history_[-1]["loss"] < model.history_[0]["loss"]
    assert all(epoch["clock_distance_max"] >= 0 for epoch in model.history_)


def test_what_is_not_trained_goes_as_the_change_that_it_is() -> None:
    update = Update(SGD(), 0.0, 0.0, ((0, 2, 0), (2, 4, KINDS_OF_RUNS["untrained"])))
    with Group(MODES["delay"], 2, 4, rate=1.0, update=update) as group:
        first, second = group.channels
        first.pull(), second.pull()
        first.push_pull(np.ones(4), 1, 0.0)
        second.push_pull(np.ones(4), 1, 0.0)
        stale = -1 - (1 + STRENGTH * (-1.0))
        np.testing.assert_allclose(first.pull(), [stale, stale, -2, -2])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"compensation": "mass"}, "'compensation' parameter of Async must be a str among"),
        ({"compensation": "delay", "compensation_strength": -1.0}, "'compensation_strength'"),
        (
            {"compensation": "age", "compensation_strength": 0.1},
            "no effect without compensation='delay'",
        ),
    ],
)
def test_options_without_a_meaning_are_refused(options: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        dps.Async(**options)
