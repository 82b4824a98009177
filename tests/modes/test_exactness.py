"""The promises about bits: sync and allreduce against sequential training, async of one.

The reference here knows neither windows nor modes nor channels: it cuts each rank's rows
into its share of every batch, sums gradients in rank order, and applies the optimizer.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
from cases import pairs
from configure import placed
from distributed import Client

import dps
from dps.data.survey.spread import Spread
from dps.losses import LogLoss
from dps.losses.classification import Softmax
from dps.models.base import CSRRows, DenseRows
from dps.models.linear import LinearModel
from dps.optimizers import (
    OPTIMIZERS,
    SGD,
    Adagrad,
    AdamW,
    InvScaling,
    Momentum,
    Optimizer,
    ScaledAdagrad,
)
from dps.training.plan import batches
from dps.training.replica.channel import Channel

EVERY_OPTIMIZER = [*(kind() for kind in OPTIMIZERS.values()), Momentum(nesterov=True)]
RATE = InvScaling(0.05)
EPOCHS = 3
ALPHA = 0.01


def problem(rows: int, classes: int = 2, features: int = 7) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(rows)
    X = rng.normal(size=(rows, features)) * (rng.random((rows, features)) < 0.6)
    scores = X @ rng.normal(size=(features, classes)) + rng.gumbel(size=(rows, classes))
    return X, scores.argmax(axis=1), rng.random(rows) + 0.5


def rows_of(X: Any, index: Any) -> Any:
    if scipy.sparse.issparse(X):
        part = X[index]
        return CSRRows(part.data, part.indices, part.indptr, X.shape[1])
    return DenseRows(np.ascontiguousarray(X[index]))


class Sequential:
    """One process that sums the same sub-batches in rank order."""

    def __init__(
        self,
        X: Any,
        y: Any,
        weight: Any,
        optimizer: Optimizer,
        classes: int = 2,
        lengths: Any = (),
        l2: float = ALPHA,
    ) -> None:
        binary = classes == 2
        n_outputs, loss = (1, LogLoss()) if binary else (classes, Softmax())
        # A batch that crosses partitions is summed partition by partition.
        self.cuts = np.cumsum(lengths)[:-1]
        centre, scale = self.spread(X) if isinstance(optimizer, ScaledAdagrad) else (None, None)
        self.model = LinearModel(X.shape[1], n_outputs, loss, centre=centre)
        self.X, self.optimizer, self.l2 = X, optimizer, l2
        self.y = 2.0 * y - 1.0 if binary else y.astype(float)
        self.weight = weight
        if weight is not None:  # they average 1; summed partition by partition
            total = sum(float(part.sum()) for part in np.split(weight, self.cuts))
            self.weight = weight * (len(y) / total)
        self.params = self.model.initial()
        self.model.layout.views(self.params)["intercept"][:] = self.start(y, weight, classes)
        self.state = np.zeros((optimizer.state_rows, self.params.size))
        optimizer.initialize(self.state)
        self.updates = 0
        self.n_coef = X.shape[1] * self.model.n_outputs
        if scale is not None:
            self.state[:, : self.n_coef] /= np.repeat([(1 / scale) ** 2, scale], n_outputs, axis=1)

    def start(self, y: Any, weight: Any, classes: int) -> Any:
        """The log odds of the classes."""
        ones = np.ones(len(y)) if weight is None else weight
        parts = zip(np.split(y.astype(int), self.cuts), np.split(ones, self.cuts), strict=True)
        counts = sum(np.bincount(*part, classes) for part in parts)
        shares = counts * (len(y) / float(sum(part.sum() for part in np.split(ones, self.cuts))))
        shares = shares / shares.sum()
        if classes == 2:
            return np.log(shares[1] / (1 - shares[1]))
        return np.log(shares) - np.log(shares).mean()

    def spread(self, X: Any) -> tuple[Any, Any]:
        """Centre and scale of the features, as the look at each partition gives them."""
        cuts = [0, *self.cuts, X.shape[0]]
        parts = [Spread.of(X[a:b], "f8") for a, b in itertools.pairwise(cuts) if b > a]
        found = Spread.merge(parts)
        centre = found.centre("f8") if X.shape[1] < 100 else None  # else steps go by keys
        return centre, found.scale(centre, "f8")

    def gradient(self, index: Any) -> Any:
        grad = np.zeros_like(self.params)
        for part in np.split(index, np.searchsorted(index, self.cuts)):
            if len(part):
                weight = None if self.weight is None else self.weight[part]
                X = rows_of(self.X, part)
                self.model.loss_gradient(self.params, X, self.y[part], weight, grad)
        return grad

    def update(self, mean: Any, rate: float) -> None:
        self.updates += 1
        free = self.optimizer
        if isinstance(free, AdamW):
            free = replace(free, weight_decay=0.0)
        for optimizer, part, l2 in (
            (self.optimizer, slice(0, self.n_coef), self.l2),
            (free, slice(self.n_coef, None), 0.0),
        ):
            optimizer.update(
                self.params[part], mean[part], self.state[:, part],
                step=self.updates, lr=rate, l1=0.0, l2=l2,
            )  # fmt: skip

    def run(self, ranks: list[Any], batch: int, joined: bool = False) -> Any:
        total = sum(len(rows) for rows in ranks)
        steps = -(-total // batch)
        for epoch in range(EPOCHS):
            for t in range(steps):
                shares = [
                    rows[len(rows) * t // steps : len(rows) * (t + 1) // steps] for rows in ranks
                ]
                count = sum(map(len, shares))
                if joined:
                    mean = self.gradient(np.concatenate(shares)) / count
                else:
                    sums = [self.gradient(share) for share in shares if len(share)]
                    mean = sum(sums[1:], sums[0]) / count
                self.update(mean, RATE(epoch + t / steps))
        return self.model.plain(self.params)


def estimator(**parameters: Any) -> dps.LinearClassifier:
    options = {
        "alpha": ALPHA, "learning_rate": RATE, "max_iter": EPOCHS, "tol": None, "shuffle": False,
        "batch_size": 32, "optimizer": "momentum", "random_state": 0, "standardize": False,
    }  # fmt: skip
    return dps.LinearClassifier(**placed({**options, **parameters}))


def flat(model: dps.LinearClassifier) -> Any:
    return np.concatenate([model.coef_.T.ravel(), model.intercept_])


def ranks_of(model: dps.LinearClassifier, lengths: tuple[int, ...]) -> list[Any]:
    """Global row numbers of each rank, from the reported plan."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return [
        np.concatenate(
            [offsets[p.partition] + np.arange(p.start, p.stop) for p in rank.pieces]
            or [np.empty(0, int)]
        )
        for rank in model.plan_.ranks
    ]  # fmt: skip


def partitioned(X: Any, lengths: tuple[int, ...]) -> Any:
    """A dask array in partitions of these lengths, dense or CSR."""
    cuts = np.concatenate([[0], np.cumsum(lengths)])
    if not scipy.sparse.issparse(X):
        return da.from_array(X, chunks=(lengths, *X.shape[1:]))
    from dask import delayed

    blocks = [
        da.from_delayed(delayed(X[a:b]), (b - a, X.shape[1]), X.dtype, meta=X[:0])
        for a, b in itertools.pairwise(cuts)
    ]
    return da.concatenate(blocks)


@pairs(
    n_replicas=[1, 2, 3, 4],
    lengths=[(60, 60, 60, 60), (101, 0, 7, 60)],
    weighted=[False, True],
    sparse=[False, True],
    optimizer=EVERY_OPTIMIZER,
)
def test_sync_is_sequential_training_bit_for_bit(
    optimizer: Optimizer, sparse: bool, weighted: bool, lengths: tuple[int, ...], n_replicas: int
) -> None:
    X, y, weight = problem(sum(lengths))
    X, weight = scipy.sparse.csr_matrix(X) if sparse else X, weight if weighted else None
    if sparse:  # dask drops empty blocks when it concatenates
        lengths = tuple(length for length in lengths if length)
    model = estimator(optimizer=optimizer, n_replicas=n_replicas)
    model.fit(
        partitioned(X, lengths), partitioned(y, lengths),
        None if weight is None else partitioned(weight, lengths),
    )  # fmt: skip
    ranks = ranks_of(model, lengths)
    assert len(ranks) == n_replicas
    assert sorted(np.concatenate(ranks)) == list(range(len(y)))
    expected = Sequential(X, y, weight, optimizer, lengths=lengths).run(ranks, 32)
    assert np.array_equal(flat(model), expected)
    joined = Sequential(X, y, weight, optimizer).run(ranks, 32, joined=True)
    tolerance = 1e-6 if type(optimizer).__name__ == "Adam" else 1e-10
    np.testing.assert_allclose(flat(model), joined, rtol=tolerance, atol=tolerance)


def by_lbfgs(**parameters: Any) -> dps.LinearClassifier:
    given = placed(parameters)
    return dps.LinearClassifier(optimizer="lbfgs", alpha=ALPHA, tol=1e-6, **given)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
def test_lbfgs_has_the_same_bits_in_every_mode_and_on_any_shards(
    sparse: bool, classes: int
) -> None:
    X, y, weight = problem(300, classes, features=33)
    X = scipy.sparse.csr_matrix(X) if sparse else X
    expected = flat(by_lbfgs(n_replicas=3).fit(X, y, weight))
    for mode in (dps.Sync, dps.AllReduce, dps.Async):
        for n_shards in (1, 5):
            model = by_lbfgs(n_replicas=3, n_shards=n_shards, mode=mode())
            assert np.array_equal(flat(model.fit(X, y, weight)), expected)
    alone = flat(by_lbfgs(n_replicas=1).fit(X, y, weight))
    np.testing.assert_allclose(alone, expected, rtol=1e-3, atol=1e-4)


@pairs(
    classes=[2, 4],
    mode=[dps.Sync, dps.AllReduce],
    n_shards=[1, 2, 5],
)
def test_shards_do_not_change_a_bit(n_shards: int, mode: Any, classes: int) -> None:
    X, y, _ = problem(300, classes, features=33)
    expected = flat(estimator(n_replicas=3).fit(X, y))
    model = estimator(n_replicas=3, n_shards=n_shards, mode=mode()).fit(X, y)
    assert len(model.plan_.shards) == n_shards
    assert np.array_equal(flat(model), expected)


@pytest.mark.parametrize("optimizer", EVERY_OPTIMIZER, ids=repr)
def test_allreduce_is_sync(optimizer: Optimizer) -> None:
    X, y, weight = problem(250, 3)
    options = {"optimizer": optimizer, "n_replicas": 3}
    sync = flat(estimator(mode="sync", **options).fit(X, y, weight))
    allreduce = flat(estimator(mode="allreduce", **options).fit(X, y, weight))
    np.testing.assert_allclose(allreduce, sync, rtol=1e-10)


@pytest.mark.parametrize("optimizer", EVERY_OPTIMIZER, ids=repr)
@pytest.mark.parametrize("n_shards", [1, 3])
def test_all_ranks_of_an_allreduce_hold_the_same_bits(
    optimizer: Optimizer, n_shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: dict[int, list[bytes]] = {}
    end_epoch = Channel.end_epoch

    def noting(self: Channel, epoch: int, *args: Any) -> Any:
        held.setdefault(epoch, []).append(self._held.tobytes())
        return end_epoch(self, epoch, *args)

    monkeypatch.setattr(Channel, "end_epoch", noting)
    X, y, weight = problem(250, 3)
    options = {"optimizer": optimizer, "n_replicas": 4, "n_shards": n_shards}
    estimator(mode="allreduce", **options).fit(X, y, weight)
    assert [len(copies) for _, copies in sorted(held.items())] == [4] * EPOCHS
    assert [len(set(copies)) for copies in held.values()] == [1] * EPOCHS
    assert len(set.union(*map(set, held.values()))) == EPOCHS  # and they do move


def test_copies_of_an_allreduce_that_differ_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = Channel.digest

    def spoiled(self: Channel) -> int:
        if self._spec.rank == 1 and self.steps > 10:
            self._held[0, 0] += 1.0  # type: ignore[index]
        return digest(self)

    monkeypatch.setattr(Channel, "digest", spoiled)
    X, y, weight = problem(250, 3)
    with pytest.raises(dps.errors.ReplicaError, match="other parameters than rank 0") as caught:
        estimator(mode="allreduce", n_replicas=3, batch_size=32).fit(X, y, weight)
    assert caught.value.rank == 1


@pytest.mark.parametrize("optimizer", EVERY_OPTIMIZER, ids=repr)
def test_async_with_one_replica_is_sequential_training(optimizer: Optimizer) -> None:
    X, y, weight = problem(250)
    model = estimator(mode="async", optimizer=optimizer, n_replicas=1).fit(X, y, weight)
    expected = Sequential(X, y, weight, optimizer).run([np.arange(len(y))], 32)
    assert np.array_equal(flat(model), expected)
    assert all(record["staleness_max"] == 0 for record in model.history_)


@pytest.mark.parametrize("mode", ["sync", "async", "allreduce"])
def test_replicas_without_rows_do_no_harm(mode: str) -> None:
    X, y, _ = problem(3)
    y = np.array([0, 1, 0])
    model = estimator(mode=mode, n_replicas=5, batch_size=1).fit(X, y)
    assert sorted(rank.rows for rank in model.plan_.ranks) == [0, 0, 1, 1, 1]
    assert model.n_iter_ == EPOCHS
    assert model.history_[-1]["rows"] == 3


def test_the_same_seed_and_plan_give_the_same_bits() -> None:
    X, y, _ = problem(500)
    fits = [estimator(n_replicas=3, shuffle=True, random_state=7).fit(X, y) for _ in range(2)]
    assert np.array_equal(flat(fits[0]), flat(fits[1]))
    other = estimator(n_replicas=3, shuffle=True, random_state=8).fit(X, y)
    assert not np.array_equal(flat(other), flat(fits[0]))


@pytest.mark.parametrize(("mode", "sparse"), [(dps.Sync, True), (dps.AllReduce, False)])
def test_streams_give_the_bits_of_the_mapped_window(
    client: Client, mode: Any, sparse: bool
) -> None:
    lengths = (60, 50, 10, 80)
    X, y, _ = problem(sum(lengths))
    X = scipy.sparse.csr_matrix(X) if sparse else X
    data = partitioned(X, lengths), partitioned(y, lengths)
    results = []
    for access in ("mapped", "stream"):
        for n_shards in (1, 5):
            model = estimator(
                client=client, n_replicas=3, n_shards=n_shards, mode=mode(access=access)
            ).fit(*data)
            results.append(flat(model))
    assert len({rank.worker for rank in model.plan_.ranks}) == 2
    reference = Sequential(X, y, None, Momentum(), lengths=lengths)
    expected = reference.run(ranks_of(model, lengths), 32)
    for result in results:
        assert np.array_equal(result, expected)


def test_lbfgs_over_streams_gives_the_bits_of_the_mapped_window(client: Client) -> None:
    lengths = (60, 50, 10, 80)
    X, y, _ = problem(sum(lengths))
    data = partitioned(X, lengths), partitioned(y, lengths)
    results = []
    for access in ("mapped", "stream"):
        for n_shards in (1, 2):
            mode = dps.Sync(access=access)
            model = by_lbfgs(client=client, n_replicas=3, n_shards=n_shards, mode=mode)
            results.append(flat(model.fit(*data)))
    assert len({result.tobytes() for result in results}) == 1


def test_the_stream_of_a_large_shard_is_served_by_its_own_thread(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "_COST_OF_A_KEY", np.inf)  # whole vectors
    features, lengths = 1_050_000, (20, 20)  # from 1,048,576 on
    X = scipy.sparse.random(40, features, 1e-4, "csr", random_state=0)
    y = np.arange(40) % 2
    data = partitioned(X, lengths), partitioned(y, lengths)
    model = estimator(
        client=client, n_replicas=2, optimizer="sgd", mode=dps.Sync(access="stream")
    ).fit(*data)
    expected = Sequential(X, y, None, SGD(), lengths=lengths).run(ranks_of(model, lengths), 32)
    assert np.array_equal(flat(model), expected)


def test_fits_at_once_do_not_disturb_each_other(client: Client) -> None:
    X, y, _ = problem(600)
    broken = np.where(X.max() == X, np.inf, X)
    lengths = (150,) * 4
    X, y, broken = client.persist([partitioned(each, lengths) for each in (X, y, broken)])
    makers = [
        lambda: estimator(client=client, n_replicas=2),
        lambda: estimator(client=client, n_replicas=2, mode=dps.Sync(access="stream")),
        lambda: estimator(client=client, n_replicas=2, mode=dps.AllReduce(period=2)),
        lambda: by_lbfgs(client=client, n_replicas=2),
    ]

    def refused() -> str:
        with pytest.raises(ValueError, match="infinity") as error:
            makers[0]().fit(broken, y)
        return str(error.value)

    jobs = [*(lambda make=make: flat(make().fit(X, y)).tobytes() for make in makers), refused]
    alone = [job() for job in jobs]
    with ThreadPoolExecutor(len(jobs)) as threads:
        together = list(threads.map(lambda job: job(), jobs * 2))
    assert together == alone * 2


def test_data_in_memory_stays_where_it_is(client: Client) -> None:
    X, y, _ = problem(800)
    X, y = client.persist(partitioned(X, (100,) * 8)), partitioned(y, (100,) * 8)
    before = client.who_has(X)
    while not all(before.values()):
        before = client.who_has(X)
    model = estimator(client=client).fit(X, y)
    assert client.who_has(X) == before
    for rank in model.plan_.ranks:
        for piece in rank.pieces:
            (holders,) = [before[key] for key in before if key[1] == piece.partition]
            assert rank.worker in holders


def test_data_that_dps_computes_makes_the_same_plan_each_time(client: Client) -> None:
    X, y, _ = problem(800)
    X, y = partitioned(X, (100,) * 8), partitioned(y, (100,) * 8)
    fits = [estimator(client=client, shuffle=True).fit(X + number * 0, y) for number in range(3)]
    assert len({fit.plan_ for fit in fits}) == 1
    assert len({flat(fit).tobytes() for fit in fits}) == 1


def test_more_workers_than_partitions(client: Client) -> None:
    X, y, _ = problem(100)
    model = estimator(client=client).fit(partitioned(X, (100,)), partitioned(y, (100,)))
    assert len({rank.worker for rank in model.plan_.ranks}) == 1


@pytest.mark.parametrize("optimizer", [SGD(), Adagrad(), ScaledAdagrad()])
def test_sparse_gradients_have_the_bits_of_one_process_that_sums_the_same_sub_batches(
    client: Client, optimizer: Optimizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = (60, 50, 10, 80)
    X = scipy.sparse.random(sum(lengths), 4000, 2e-3, "csr", random_state=0)
    y = np.arange(sum(lengths)) % 2
    data = partitioned(X, lengths), partitioned(y, lengths)
    monkeypatch.setattr(batches, "_COST_OF_A_KEY", 0.0)
    for mode in (dps.Sync(), dps.Sync(access="stream"), dps.AllReduce()):
        model = estimator(
            client=client, n_replicas=3, optimizer=optimizer, mode=mode, penalty=None
        ).fit(*data)
        reference = Sequential(X, y, None, optimizer, lengths=lengths, l2=0.0)
        assert np.array_equal(flat(model), reference.run(ranks_of(model, lengths), 32))
