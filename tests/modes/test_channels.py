"""Trained parameters are kept, whatever happens while a fit ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dask.array as da
import numpy as np
import pytest
from conditions import press
from distributed import Client

import dps
from dps.cluster.dask.fit import DaskCluster
from dps.cluster.dask.replicas import ReplicaTasks
from dps.cluster.threads import ThreadCluster
from dps.estimators.fit.progress import Progress
from dps.losses import LogLoss
from dps.training.run import events as fit_events, launch, supervise as watch

X = np.random.default_rng(0).normal(size=(400, 3))
Y = (X[:, 0] > 0).astype(int)


def classifier(**options: Any) -> dps.LinearClassifier:
    given = {
        "optimizer": "sgd", "learning_rate": 0.5, "max_iter": 3, "tol": None, "n_replicas": 2,
        "random_state": 0,
    }  # fmt: skip
    return dps.LinearClassifier(**{**given, **options})


def before(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, do: Callable[[], None]) -> None:
    method = getattr(owner, name)

    def doing(*args: Any) -> Any:
        do()
        return method(*args)

    monkeypatch.setattr(owner, name, doing)


def assert_trained(model: Any, epochs: int = 3) -> None:
    assert model.n_iter_ == len(model.history_) == epochs
    assert model.score(X, Y) > 0.8
    assert model.fit_report_.epochs == epochs


@contextmanager
def failing(verbose: int, max_iter: int) -> Iterator[Progress]:
    yield lambda records: None
    raise BrokenPipeError("no one reads")


def test_a_viewer_that_fails_at_the_end_costs_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dps.estimators.fit.callbacks.showing", failing)
    model = classifier(verbose=1)
    with pytest.raises(BrokenPipeError, match="no one reads"):
        model.fit(X, Y)
    assert_trained(model)


def test_a_viewer_that_fails_at_the_end_hides_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(LogLoss):
        def evaluate(self, y: Any, raw: Any, weight: Any, out: Any) -> float:
            raise ZeroDivisionError("the loss broke")

    monkeypatch.setattr("dps.estimators.fit.callbacks.showing", failing)
    with pytest.raises(ZeroDivisionError, match="the loss broke") as caught:
        classifier(verbose=1, loss=Failing()).fit(X, Y)
    assert any("no one reads" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (watch.Watcher, "_result"),
        (ThreadCluster, "close"),
        (dps.LinearClassifier, "_fitted"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_ctrl_c_after_the_last_epoch_keeps_all_epochs(
    owner: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = classifier()
    before(monkeypatch, owner, name, press)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y)
    monkeypatch.undo()
    assert_trained(model)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (watch.Watcher, "_fetch"),
        (watch.Watcher, "_result"),
        (fit_events.FitEvents, "ended"),
        (DaskCluster, "close"),
        (ReplicaTasks, "release"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_so_does_ctrl_c_at_the_end_of_a_fit_on_a_cluster(
    owner: Any, name: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = classifier(client=client)
    over = threading.Event()
    ended = watch.Watcher._watch

    def watched(watcher: watch.Watcher) -> None:
        ended(watcher)
        over.set()

    monkeypatch.setattr(watch.Watcher, "_watch", watched)
    before(monkeypatch, owner, name, lambda: press() if over.is_set() else None)
    with pytest.raises(KeyboardInterrupt):
        model.fit(da.from_array(X, chunks=(100, 3)), da.from_array(Y, chunks=100))
    monkeypatch.undo()
    assert_trained(model)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_more_epochs_than_a_window_keeps_are_lost_with_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"max_iter": 50, "n_replicas": 1}
    whole = classifier(**options).fit(X, Y)
    monkeypatch.setattr(launch, "HISTORY", 4)
    monkeypatch.setattr(watch, "_CHECK_EVERY", 3600.0)  # the records are fetched at the end
    with pytest.warns(UserWarning, match=r"records of 46 epochs .from 1 to 46. are lost"):
        model = classifier(**options).fit(X, Y)
    assert_trained(model, 50)
    assert [record["epoch"] for record in model.history_] == list(range(1, 51))
    losses = [record["loss"] for record in model.history_]
    assert np.isnan(losses[:46]).all()
    assert losses[46:] == [record["loss"] for record in whole.history_[46:]]
    np.testing.assert_array_equal(model.coef_, whole.coef_)


def test_a_second_ctrl_c_while_a_fit_is_cleared_away(monkeypatch: pytest.MonkeyPatch) -> None:
    pressed: list[int] = []

    def on_epochs(records: Any) -> None:
        if not pressed:
            pressed.append(1)
            press()

    @contextmanager
    def showing(*_: Any) -> Iterator[Progress]:
        yield on_epochs

    monkeypatch.setattr("dps.estimators.fit.callbacks.showing", showing)
    before(monkeypatch, ThreadCluster, "close", press)
    model = classifier(verbose=1, max_iter=10**6)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y)
    monkeypatch.undo()
    assert_trained(model, model.n_iter_)


def test_whoever_insists_interrupts_the_clearing_away_and_has_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    close = ThreadCluster.close

    def closing(cluster: ThreadCluster) -> None:
        close(cluster)
        press()
        press()
        pytest.fail("not interrupted")

    monkeypatch.setattr(ThreadCluster, "close", closing)
    model = classifier()
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y)
    assert_trained(model)
