"""mode="auto": what is chosen from which figures, and that a fit goes on in it as it should."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
from cases import slow
from distributed import Client
from inside import carry_of

import dps
from dps import AllReduce, Async, Hybrid, Sync
from dps._runtime.shared import activity as words
from dps.errors import WorkerLostError
from dps.losses import LogLoss
from dps.modes import Mode, get_mode
from dps.modes.choosing import Choice, Figures, choose
from dps.training.run import mode_choice as choosing, supervise as watch, trainer

ROWS, EPOCHS = 600, 6


def figures(
    compute: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0), moving: float = 0.1, wait: float = 0.1,
    **more: Any,
) -> Figures:  # fmt: skip
    n = len(compute)
    made = Figures(
        rows=(1000,) * n, compute=compute, communicate=(moving,) * n, wait=(wait,) * n, hosts=1,
        by_keys=False, table=False, epoch_rows=(10_000,) * n, epoch_steps=100, left=60.0,
    )  # fmt: skip
    return replace(made, **more)


SLOW = (1.0, 4.0, 1.0, 1.1)
OTHERS: dict[str, tuple[Figures, Mode, str]] = {
    "one slow": (
        figures(SLOW, wait=3.0),
        Sync(backups=1, late_gradients="add"),
        "replica 1 takes 4.0 times",
    ),
    "two slow of five": (
        figures((1.0, 3.0, 4.0, 1.0, 1.0)),
        Sync(backups=2, late_gradients="add"),
        "2 replicas take up to 4.0 times",
    ),
    "a slow one on its own host": (
        figures(SLOW, hosts=2, moving=0.5),
        Sync(backups=1, late_gradients="add"),
        "replica 1",
    ),
    "one slow of a table": (
        figures(SLOW, by_keys=True, table=True),
        Sync(backups=1, late_gradients="add"),
        "replica 1",
    ),
    "two hosts, dense": (
        figures(moving=3.0, wait=1.0, hosts=2),
        AllReduce(period=16),
        "60% of the time is moving data and 20% waiting, between 2 hosts",
    ),
    "waiting between hosts": (figures(wait=5.0, hosts=3), AllReduce(period=16), "3 hosts"),
    "by keys between hosts": (figures(moving=3.0, hosts=2, by_keys=True), Async(), "keys"),
    "waiting at one host": (figures(moving=0.5, wait=2.0), Async(max_delay=8), "57% waiting"),
    "many waiting by keys": (
        figures((1.0,) * 20, wait=2.0, by_keys=True),
        Async(max_delay=8),
        "65% waiting",
    ),
    "a table": (figures(moving=1.0, wait=1.0, by_keys=True, table=True), Hybrid(), "table"),
}
SAME: dict[str, tuple[Figures, str]] = {
    "one replica": (figures((1.0,)), "one replica"),
    "nothing counted": (figures((0.0,) * 4, 0.0, 0.0), "monitoring is off"),
    "even": (figures(), "replicas are even, 8% of the time is moving data and 8% waiting"),
    "more rows, as fast": (
        replace(figures((1.0, 4.0, 1.0, 1.0)), rows=(100, 400, 100, 100)),
        "replicas are even",
    ),
    "many waiting": (figures((1.0,) * 9, wait=5.0), "gradients of 9 replicas would be too old"),
    "moving at one host": (figures(moving=5.0), "replicas are even"),
    "two hosts that compute": (figures(hosts=2, moving=0.3), "replicas are even"),
    "keys that compute": (figures(by_keys=True, hosts=2), "replicas are even"),
    "half are slow": (figures((4.0, 4.0, 1.0, 1.0)), "2 of 4 are too many"),
    "one slow of two": (figures((4.0, 1.0)), "1 of 2 are too many"),
    "too few rows": (figures(SLOW, epoch_rows=(10_000, 90, 9, 9)), "need rows of every replica"),
    "nearly over": (figures(SLOW, left=0.5), "sync (backups=1, late_gradients='add') would save"),
    "slow, but that is hidden": (figures((1.0, 1.6, 1.0, 1.0), moving=9.0), "little would be"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_figures_that_speak_for_another_mode(case: str) -> None:
    given, mode, why = OTHERS[case]
    choice = choose(given, Sync())
    assert choice.mode == mode
    assert why in choice.reason
    assert choice.gain > 1.25
    assert choose(given, Sync(access="stream")).mode.access == "stream"
    assert choose(replace(given, left=0.1), Sync()).mode == Sync()


@pytest.mark.parametrize("case", SAME)
def test_figures_that_leave_it_at_sync(case: str) -> None:
    given, why = SAME[case]
    choice = choose(given, Sync())
    assert choice.mode == Sync()
    assert why in choice.reason


def data(sparse: bool = False) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, 8)).astype(np.float32)
    y = (X @ rng.normal(size=8) + rng.logistic(size=ROWS) > 0).astype(int)
    if sparse:
        X = scipy.sparse.random_array((ROWS, 5000), density=0.001, format="csr", random_state=rng)
    return X, y


@dataclass
class Begun:
    """Fits of this test: the mode of each generation, and the epochs before it."""

    modes: list[Mode]
    epochs: list[int]
    seen: list[Figures]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Begun:
    found = Begun([], [], [])
    of = trainer.Launch.of

    def noting(job: Any, *args: Any) -> Any:
        found.modes.append(job.mode)
        found.epochs.append(len(job.done))
        return of(job, *args)

    monkeypatch.setattr(trainer.Launch, "of", noting)
    return found


@pytest.fixture
def decides(monkeypatch: pytest.MonkeyPatch, begun: Begun) -> Callable[[Mode], None]:
    """Measure at once, and have a mode chosen whatever is measured."""
    for name, value in (("_TICK", 0.02), ("_CHECK_EVERY", 0.02)):
        monkeypatch.setattr(watch, name, value)
    for name, number in (("_SECONDS", 0.0), ("_STEPS", 1)):
        monkeypatch.setattr(choosing, name, number)

    def decide(mode: Mode) -> None:
        def chosen(seen: Figures, at_work: Mode) -> Choice:
            begun.seen.append(seen)
            return Choice(mode, "it was told to", 1e9)

        monkeypatch.setattr(choosing, "choose", chosen)

    return decide


def patient() -> LogLoss:
    """A loss that takes a moment, so that there is time to look at a fit."""

    @dataclass(frozen=True)
    class Patient(LogLoss):
        def evaluate(self, y: Any, raw: Any, weight: Any, out: Any) -> float:
            time.sleep(0.0002)
            return LogLoss.evaluate(self, y, raw, weight, out)

    return Patient()


def fitted(
    mode: Any, sparse: bool = False, kind: Any = dps.LinearClassifier, **options: Any
) -> Any:
    given = {"max_iter": EPOCHS, "tol": None, "random_state": 0, "batch_size": 64, "n_replicas": 2}
    if not sparse:
        given["loss"] = patient()
    return kind(mode=mode, **(given | options)).fit(*data(sparse))


BITS: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": "sgd"},
    "adam": {"optimizer": "adam"},
    "average": {"optimizer": "momentum", "average": True},
    "early stopping": {"optimizer": "adam", "early_stopping": True, "n_iter_no_change": 20},
}


@pytest.mark.parametrize("case", ["average", "early stopping", *slow("sgd", "adam")])
def test_a_fit_that_goes_on_in_allreduce_has_the_bits_of_sync(
    case: str, decides: Callable[[Mode], None], begun: Begun
) -> None:
    whole = fitted("sync", **BITS[case])
    decides(AllReduce())
    begun.modes.clear()
    auto = fitted("auto", **BITS[case])
    assert begun.modes == [Sync(), AllReduce()]
    assert auto.plan_.mode == AllReduce()
    assert [r["rows"] for r in auto.history_] == [r["rows"] for r in whole.history_]
    np.testing.assert_array_equal(carry_of(auto).params, carry_of(whole).params)
    np.testing.assert_array_equal(carry_of(auto).state, carry_of(whole).state)
    assert carry_of(auto).version == carry_of(whole).version
    chosen = "mode='auto' chose allreduce: it was told to"
    assert auto.fit_report_.chosen == chosen
    assert chosen in str(auto.fit_report_)
    assert chosen.replace("'", "&#x27;") in auto.fit_report_._repr_html_()
    assert "allreduce by" in auto.fit_report_.summary
    (seen,) = begun.seen
    assert (seen.hosts, seen.by_keys, seen.table) == (1, False, False)
    assert max(seen.compute) > 0  # of a rank that is looked at in the middle of its first step, 0
    assert all(rows > 0 for rows in seen.rows)


@pytest.mark.parametrize(
    "mode",
    [AllReduce(period=4), Async(), Sync(backups=1, late_gradients="add")],
    ids=lambda m: m.described,
)
def test_each_row_counts_once_an_epoch_in_any_mode(
    mode: Mode, decides: Callable[[Mode], None], begun: Begun
) -> None:
    decides(mode)
    auto = fitted("auto", optimizer="adam", n_replicas=3)
    assert begun.modes == [Sync(), mode]
    assert [r["epoch"] for r in auto.history_] == list(range(1, EPOCHS + 1))
    assert [r["rows"] + r["rows_dropped"] for r in auto.history_] == [ROWS] * EPOCHS
    assert auto.score(*data()) == pytest.approx(
        fitted("sync", optimizer="adam").score(*data()), abs=0.03
    )


def test_an_even_fit_is_left_alone(decides: Callable[[Mode], None], begun: Begun) -> None:
    whole = fitted("sync", optimizer="adam")
    begun.modes.clear()
    decides(Sync())
    auto = fitted("auto", optimizer="adam")
    assert begun.modes == [Sync()]
    assert len(begun.seen) == 1
    np.testing.assert_array_equal(carry_of(auto).params, carry_of(whole).params)
    assert auto.fit_report_.chosen == "mode='auto' chose sync: it was told to"
    assert auto.plan_ == whole.plan_
    assert not whole.fit_report_.chosen


class Mean:
    """A mean whose gradients take the first replica four times as long as others."""

    def __init__(self, n_features: int, n_outputs: int) -> None:
        self.layout = {"mean": ()}

    def init(self, rng: np.random.Generator) -> Any:
        return {"mean": 0.0}

    def raw(self, params: Any, batch: Any) -> Any:
        return np.full((batch.rows, 1), params["mean"])

    def loss_gradient(self, params: Any, batch: Any, out: Any) -> float:
        slow = threading.current_thread().name == "dps-replica-0"
        time.sleep(0.02 if slow else 0.005)
        away = params["mean"] - batch.y
        out["mean"] += away.sum()
        return float((away**2).sum() / 2)


def test_a_slow_replica_is_found_and_waited_for_no_more(begun: Begun) -> None:
    y = np.random.default_rng(0).normal(3.0, size=ROWS)
    auto = dps.ModelRegressor(
        Mean, mode="auto", n_replicas=4, max_iter=8, tol=None, optimizer="sgd", batch_size=20,
        learning_rate=0.2, random_state=0,
    ).fit(np.zeros((ROWS, 1)), y)  # fmt: skip
    mode = Sync(backups=1, late_gradients="add")
    assert begun.modes == [Sync(), mode]
    assert auto.plan_.mode == mode
    assert "replica 0 takes" in auto.fit_report_.chosen
    assert "sync (backups=1, late_gradients='add') by" in auto.fit_report_.summary
    assert [r["epoch"] for r in auto.history_] == list(range(1, 9))
    assert [r["rows"] + r["rows_dropped"] for r in auto.history_] == [ROWS] * 8
    assert abs(auto.predict([[0.0]])[0] - y.mean()) < 0.3


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "L-BFGS takes the same steps in every mode"),
        ({"optimizer": "adam", "max_iter": 2, "tol": None}, "was over before a change"),
    ],
    ids=["lbfgs", "tiny"],
)
def test_what_is_over_at_once_or_the_same_in_all_modes_is_not_measured(
    options: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch, begun: Begun
) -> None:
    monkeypatch.delattr(choosing.Choosing, "_measure")
    fits = [
        dps.LinearClassifier(mode=mode, random_state=0, n_replicas=2, **options).fit(*data())
        for mode in ("sync", "auto")
    ]
    assert begun.modes == [Sync(), Sync()]
    np.testing.assert_array_equal(fits[0].coef_, fits[1].coef_)
    assert why in fits[1].fit_report_.chosen


def test_a_table_goes_on_row_by_row(decides: Callable[[Mode], None], begun: Begun) -> None:
    decides(Hybrid())
    auto = fitted(
        "auto", True, dps.FMClassifier, max_embeddings=4000, hidden_layer_sizes=(4,), batch_size=8,
        max_iter=60, alpha=1e-3,
    )  # fmt: skip
    assert begun.modes == [Sync(), Hybrid()]
    assert [r["rows"] for r in auto.history_] == [auto.plan_.rows] * 60
    assert (begun.seen[0].by_keys, begun.seen[0].table) == (True, True)
    assert auto.history_[-1]["loss"] < auto.history_[0]["loss"]


def test_the_workers_of_a_cluster_change_together(
    client: Client, decides: Callable[[Mode], None], begun: Begun
) -> None:
    X, y = data()
    parts = client.persist((da.from_array(X, (200, 8)), da.from_array(y, 200)))
    options: dict[str, Any] = {
        "optimizer": "adam", "max_iter": 20, "tol": None, "random_state": 0, "batch_size": 10,
        "client": client, "loss": patient(),
    }  # fmt: skip
    whole = dps.LinearClassifier(**options).fit(*parts)
    decides(AllReduce())
    begun.modes.clear()
    auto = dps.LinearClassifier(mode="auto", **options).fit(*parts)
    assert begun.modes == [Sync(), AllReduce()]
    assert 0 <= begun.epochs[-1] < 20
    assert [r["rows"] for r in auto.history_] == [ROWS] * 20
    np.testing.assert_array_equal(auto.coef_, whole.coef_)


@pytest.mark.parametrize(
    ("open_rows", "leaves"), [(0, True), (30, True), (140, True), (160, False), (590, False)]
)
def test_an_open_epoch_is_begun_again_where_that_costs_less_than_its_rest(
    open_rows: int, leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "_SECONDS", 0.0)
    # What is left takes a third less time, so that a third of it may be seen again.
    monkeypatch.setattr(choosing, "choose", lambda *_: Choice(Async(), "it was told to", 1.5))
    counts = np.zeros((2, words.WIDTH), np.int64)
    job: Any = SimpleNamespace(
        mode=Sync(), stopping=SimpleNamespace(max_iter=9),
        model=SimpleNamespace(layout=SimpleNamespace(table=None)),
    )  # fmt: skip
    ranks = (SimpleNamespace(worker="a", rows=300, steps=30),) * 2
    launch: Any = SimpleNamespace(job=job, plan=SimpleNamespace(rows=600, ranks=ranks), rates=None)
    session: Any = SimpleNamespace(counts=lambda check: [counts.copy()])
    cluster: Any = SimpleNamespace(hosts=lambda workers: workers)
    made = choosing.Choosing(get_mode("auto"))
    made.begin(launch, session, cluster)
    assert not made.should_end(0)
    counts[:, words.STEPS] = 1
    assert not made.should_end(0)
    counts[:, words.STEPS] = choosing._STEPS
    assert not made.should_end(0)  # of which one is not among those that are measured
    counts[:, words.STEPS] += 1
    counts[:, words.ROWS], counts[:, words.EPOCH_ROWS] = 900, open_rows // 2
    assert made.should_end(0) == leaves
    counts[:, words.EPOCH_ROWS] = 0
    assert made.should_end(1)


def test_a_name_that_is_none_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"\['allreduce', 'async', 'auto', 'hybrid', 'sync'\]"):
        dps.LinearClassifier(mode="best").fit(*data())


def test_after_a_loss_the_mode_is_chosen_anew(
    decides: Callable[[Mode], None], begun: Begun, monkeypatch: pytest.MonkeyPatch
) -> None:
    decides(Sync(backups=1))
    run = trainer.Watcher.run

    def losing(self: Any, ending: Callable[[], None]) -> Any:
        if len(begun.modes) == 2:
            raise WorkerLostError("a worker died")
        return run(self, ending)

    monkeypatch.setattr(trainer.Watcher, "run", losing)
    auto = fitted("auto", optimizer="adam")
    assert begun.modes == [Sync(), Sync(backups=1)] * 2
    assert len(begun.seen) == 2
    assert [r["epoch"] for r in auto.history_] == list(range(1, EPOCHS + 1))
    assert auto.fit_report_.chosen == "mode='auto' chose sync (backups=1): it was told to"
