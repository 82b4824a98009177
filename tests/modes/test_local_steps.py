"""Local steps: what copies come to is the formula of the papers, written out, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from compiled import displacement, multiple
from configure import placed
from distributed import Client
from groups import Group, at_once
from own_models import Softmax

import dps
from dps import AllReduce, ModelClassifier
from dps._runtime.modes.allreduce import AllReduceStep
from dps._runtime.shared.activity import BYTES
from dps.errors import StoppedError
from dps.models import Tensor
from dps.optimizers import SGD, Averaged, Momentum
from dps.server.group.window import ABORTED
from dps.training.replica.channel import Channel

SIZE, STEPS, RATE, MU = 60, 10, 0.1, 0.9
Copy = tuple[np.ndarray, np.ndarray]


def rows(rank: int, step: int) -> int:
    return (rank + step) % 3 if rank else 2  # some have none


def gradient(rank: int, step: int, params: np.ndarray) -> np.ndarray:
    target = np.random.default_rng((rank, step)).normal(size=len(params))
    return rows(rank, step) * (params - target)


def mean(parts: list[np.ndarray], count: float, hosts: list[tuple[int, ...]]) -> np.ndarray:
    """In the order of ranks within hosts, and then of hosts."""
    sums = []
    for ranks in hosts:
        total = parts[ranks[0]].copy()
        for rank in ranks[1:]:
            total += parts[rank]
        sums.append(total)
    for one in sums[1:]:
        sums[0] += one
    made: np.ndarray = sums[0] / count
    return made


def formula(mode: AllReduce, n: int, epochs: int, hosts: list[tuple[int, ...]]) -> list[Copy]:
    """Momentum on each rank; the outer step after each period, and at each epoch's end."""
    base, outer_velocity = np.zeros(SIZE), np.zeros(SIZE)
    params, velocity = np.zeros((n, SIZE)), np.zeros((n, SIZE))
    taken = np.zeros(n, int)
    for step in range(epochs * STEPS):
        for rank in range(n):
            g = gradient(rank, step, params[rank]) / max(rows(rank, step), 1)
            velocity[rank] = MU * velocity[rank] + g
            params[rank] -= RATE * velocity[rank]
            taken[rank] += rows(rank, step)
        last = (step + 1) % STEPS == 0
        if last or (step + 1 - step // STEPS * STEPS) % mode.period == 0:
            away = [taken[rank] * (base - params[rank]) for rank in range(n)]
            d = mean(away, taken.sum(), hosts)
            if mode.outer == "nesterov":
                outer_velocity = mode.outer_momentum * outer_velocity + d
                move = d + mode.outer_momentum * outer_velocity
                base = base - mode.outer_learning_rate * move
            else:
                base = base - d
            params[:], taken[:] = base, 0
        if last:
            velocity[:] = mean(list(velocity), n, hosts)
    return [(params[rank], velocity[rank]) for rank in range(n)]


def train(mode: AllReduce, n: int, epochs: int, **options: Any) -> list[Copy]:
    def run(channel: Channel, rank: int) -> Copy:
        for epoch in range(epochs):
            channel.step.plan_steps(STEPS)
            for step in range(epoch * STEPS, (epoch + 1) * STEPS):
                g = gradient(rank, step, channel.params)
                channel.push_pull(g, rows(rank, step), 0.0)
        assert channel.steps == epochs * STEPS
        held = channel._held
        assert held is not None
        return held[0].copy(), held[1].copy()

    with Group(mode, n, SIZE, optimizer=Momentum(MU), rate=RATE, **options) as group:
        copies = at_once([lambda r=r, c=c: run(c, r) for r, c in enumerate(group.channels)])  # type: ignore[misc]
    for copy in copies:
        if isinstance(copy, Exception):
            raise copy
    return copies


def assert_equal(copies: list[Copy], wanted: list[Copy]) -> None:
    for copy, (params, velocity) in zip(copies, wanted, strict=True):
        np.testing.assert_array_equal(copy[0], params)
        np.testing.assert_array_equal(copy[1], velocity)


def everywhere(n_ranks: int, n_shards: int) -> list[tuple[int, int]]:
    return [(rank, shard) for rank in range(n_ranks) for shard in range(n_shards)]


@pytest.mark.parametrize("period", [4, 5, 100], ids="period={}".format)
@pytest.mark.parametrize("outer", ["average", "nesterov"])
def test_copies_are_those_of_the_formula(outer: str, period: int) -> None:
    mode = AllReduce(period=period, outer=outer)
    wanted = formula(mode, 3, 2, [(0,), (1,), (2,)])
    assert_equal(train(mode, 3, 2), wanted)
    assert_equal(train(mode, 3, 2, n_shards=3, far=everywhere(3, 3)), wanted)
    assert_equal(train(mode, 3, 2, n_shards=3, far=[(0, 1), (2, 0)]), wanted)
    hosts = [(0, 1), (2,)]
    far = [(2, 0), (0, 1), (1, 1)]
    assert_equal(train(mode, 3, 2, n_shards=2, hosts=hosts, far=far), formula(mode, 3, 2, hosts))


def test_two_copies_that_go_round_a_ring_have_the_bits_of_those_that_do_not() -> None:
    for outer in ("average", "nesterov"):
        direct = train(AllReduce(period=4, outer=outer), 2, 2)
        ring = AllReduce(period=4, outer=outer, algorithm="ring")
        assert_equal(train(ring, 2, 2, n_shards=2, far=[(0, 1), (1, 0)]), direct)


def test_three_copies_that_go_round_a_ring_are_the_formula_in_another_order_of_sums() -> None:
    ring = AllReduce(period=4, outer="nesterov", algorithm="ring")
    copies = train(ring, 3, 2, n_shards=3)
    for copy, wanted in zip(copies, formula(ring, 3, 2, [(0,), (1,), (2,)]), strict=True):
        np.testing.assert_array_equal(copy, copies[0])
        np.testing.assert_allclose(copy, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("far", [(), [(0, 0)]], ids=["mapped", "far"])
def test_a_rank_says_that_it_lives_while_it_meets_nobody(far: Any) -> None:
    with Group(AllReduce(period=4), 2, SIZE, far=far) as group:
        channel, window = group.channels[0], group.windows[0]
        before = window.progress(0)
        for _ in range(3):
            channel.push_pull(np.ones(SIZE), 1, 0.0)
        channel.beat()  # behind what has been sent
        beats = [now - then for then, now in zip(before, window.progress(0), strict=True)]
        assert sum(beats) >= 2
        assert sum(int(row[BYTES]) for row in channel.activity.rows) == 0


def data(sparse: bool = False) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    if sparse:
        X: Any = scipy.sparse.random_array(
            (2000, 3000), density=0.002, format="csr", random_state=rng
        )
    else:
        X = rng.normal(size=(2000, 20))
    return X, (X @ rng.normal(size=X.shape[1]) > 0).astype(int)


def fitted(mode: Any, X: Any, y: Any, **options: Any) -> Any:
    return dps.LinearClassifier(
        mode=mode, max_iter=2, tol=None, random_state=0,
        **placed({"n_replicas": 3, "batch_size": 32, **options}),
    ).fit(X, y)  # fmt: skip


def bits(model: Any) -> tuple[bytes, bytes, list[float]]:
    return (
        model.coef_.tobytes(), model.intercept_.tobytes(),
        [record["loss"] for record in model.history_],
    )  # fmt: skip


def test_a_period_of_one_is_an_all_reduce_as_it_always_was() -> None:
    with Group(AllReduce(period=1), 2, SIZE) as group:
        assert {type(channel.step) for channel in group.channels} == {AllReduceStep}


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "by keys"])
def test_one_copy_alone_trains_as_if_nobody_met(sparse: bool) -> None:
    X, y = data(sparse)
    alone = [
        fitted(AllReduce(period=period), X, y, n_replicas=1, optimizer="momentum")
        for period in (1, 7)
    ]
    assert bits(alone[0]) == bits(alone[1])


@pytest.mark.parametrize("optimizer", ["momentum", "adagrad", "adam"])
@pytest.mark.parametrize("outer", ["average", "nesterov"])
def test_steps_by_keys_come_to_what_whole_vectors_do(outer: str, optimizer: str) -> None:
    X, y = data(sparse=True)
    mode = AllReduce(period=5, outer=outer)
    options = {"optimizer": optimizer, "alpha": 1e-3, "standardize": False}
    keyed, whole = (fitted(mode, rows, y, **options) for rows in (X, X.toarray()))
    np.testing.assert_allclose(keyed.coef_, whole.coef_, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "by keys"])
def test_bits_do_not_depend_on_shards_or_ways_to_them(client: Client, sparse: bool) -> None:
    X, y = data(sparse)
    here = bits(fitted(AllReduce(period=4), X, y, n_shards=3))
    assert bits(fitted(AllReduce(period=4), X, y, n_shards=1)) == here
    ways = [
        fitted(AllReduce(period=4, access=access), X, y, client=client, n_shards=n_shards)
        for access, n_shards in (("mapped", 1), ("stream", 3))
    ]
    assert bits(ways[0]) == bits(ways[1])


def test_bytes_go_by_the_period() -> None:
    sent = {}
    for period in (1, 16):
        with Group(AllReduce(period=period), 2, SIZE) as group:
            steps = [lambda c=c: _push(c, 32) for c in group.channels]  # type: ignore[misc]
            assert at_once(steps) == [None, None]
            sent[period] = [int(channel.activity.rows[0][BYTES]) for channel in group.channels]
    assert sent[1] == [16 * bytes_ for bytes_ in sent[16]] == [32 * SIZE * 8] * 2


def _push(channel: Channel, steps: int) -> None:
    channel.step.plan_steps(steps)
    for _ in range(steps):
        channel.push_pull(np.ones(SIZE), 1, 0.0)


def test_it_learns_as_much_as_steps_together_do() -> None:
    X, y = data()
    for outer in ("average", "nesterov"):
        model = fitted(AllReduce(period=8, outer=outer), X, y, optimizer="adam", learning_rate=0.01)
        assert model.score(X, y) > 0.9
        assert not any(record["full_batch"] for record in model.history_)


def test_fits_go_on_where_they_were() -> None:
    X, y = data()
    options: Any = {"mode": AllReduce(period=8), "optimizer": "adam", "random_state": 0}
    model = dps.LinearClassifier(n_replicas=2, **options)
    for _ in range(3):
        model.partial_fit(X, y, classes=[0, 1])
    assert model.score(X, y) > 0.8


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"period": 0}, "period"),
        ({"outer": "median"}, "outer"),
        ({"outer_learning_rate": 0.0}, "outer_learning_rate"),
        ({"outer_momentum": 1.0}, "outer_momentum"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"The '{said}' parameter of AllReduce must be"):
        AllReduce(**options)


def test_passes_over_all_rows_are_refused_if_asked_for() -> None:
    X, y = data()
    with pytest.raises(ValueError, match=r"not possible with mode=AllReduce\(.*period=4"):
        fitted(AllReduce(period=4), X, y, optimizer="lbfgs", batch_size="auto")
    with pytest.raises(ValueError, match=r"not possible with mode=AllReduce\(.*period=4"):
        dps.MLPClassifier(optimizer="lbfgs", mode=AllReduce(period=4)).fit(X, y)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [0, 1, 7, 1000])
def test_kernels_are_their_formulas(n: int, dtype: str) -> None:
    rng = np.random.default_rng(0)
    old, new, out = (rng.normal(size=n).astype(dtype) for _ in range(3))
    old.setflags(write=False)
    displacement(old, new, 7, out)
    np.testing.assert_array_equal(out, np.dtype(dtype).type(7) * (old - new))
    multiple(old, 3, out)
    np.testing.assert_array_equal(out, np.dtype(dtype).type(3) * old)


class Shares(Softmax):
    """It keeps a running mean of the shares of the classes, which is not trained."""

    def __init__(self, n_features: int, n_classes: int) -> None:
        super().__init__(n_features, n_classes)
        self.layout = {
            **self.layout,
            "shares": Tensor("shares", (n_classes,), False, trained=False),
        }

    def init(self, rng: Any) -> Any:
        return {**super().init(rng), "shares": 0.5}

    def loss_gradient(self, params: Any, batch: Any, out: Any, buffers: Any) -> float:
        shares = np.bincount(batch.y, minlength=2) / batch.rows
        buffers["shares"] += 0.1 * (shares - buffers["shares"])
        return float(super().loss_gradient(params, batch, out))


def test_means_of_parameters_go_with_what_is_not_trained() -> None:
    X = np.random.default_rng(0).normal(size=(600, 3))
    y = (X[:, 0] > 0).astype(int)
    model = ModelClassifier(
        Shares, mode=AllReduce(period=3), n_replicas=2, optimizer=Averaged(SGD()),
        learning_rate=0.5, max_iter=3, tol=None, batch_size=60, random_state=0,
    ).fit(X, y)  # fmt: skip
    assert model.score(X, y) > 0.9
    assert np.abs(model.params_["shares"] - 0.5).max() < 0.1


def test_between_meetings_a_rank_sees_that_the_fit_has_been_stopped() -> None:
    with Group(AllReduce(period=1000), 2, 8) as group:
        channel = group.channels[0]
        channel.push_pull(np.ones(8), 1, 0.0)
        group.windows[0].stop(ABORTED)
        with pytest.raises(StoppedError):
            channel.push_pull(np.ones(8), 1, 0.0)
