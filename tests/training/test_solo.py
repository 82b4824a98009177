"""A fit by passes in this process, with one replica: no shard, no thread, the same bits."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import dask
import numpy as np
import pytest
import scipy.sparse
from conditions import press
from sklearn.exceptions import ConvergenceWarning

import dps
from dps.errors import NonFiniteError
from dps.losses import LogLoss
from dps.training.lbfgs.pieces import Pieces
from dps.training.run.solo import SoloChannel, SoloFit

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 6))
CLASSES = (X @ RNG.normal(size=(6, 3)) + RNG.gumbel(size=(600, 3))).argmax(axis=1)
NUMBERS = X @ RNG.normal(size=6) + RNG.normal(size=600)
WEIGHT = RNG.random(600)
SPARSE = scipy.sparse.random_array((600, 50), density=0.1, format="csr", rng=RNG)

Classifier, Regressor = dps.LinearClassifier, dps.LinearRegressor


def epochs_of(model: Any) -> list[dict[str, Any]]:
    timed = ("seconds", "rows_per_second")
    return [{k: v for k, v in each.items() if k not in timed} for each in model.history_]


@pytest.mark.parametrize(
    ("model", "data"),
    [
        (Classifier(), (X, CLASSES)),
        (Classifier(class_weight="balanced"), (X.astype("f4"), CLASSES, WEIGHT)),
        (Classifier(penalty="l1", alpha=0.01, fit_intercept=False), (X, CLASSES > 0)),
        (Classifier("hinge", mode="allreduce"), (X, CLASSES > 0)),
        (Classifier(warm_start=True, max_iter=3), (SPARSE, CLASSES)),
        (Regressor("quantile", random_state=1), (X, NUMBERS)),
        (Regressor("poisson", alpha=0.1), (X, np.exp(NUMBERS / 4), WEIGHT)),
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_it_has_the_bits_of_a_fit_with_a_shard(model: Any, data: tuple[Any, ...]) -> None:
    again = model.warm_start
    held = {"X_val": data[0][:50], "y_val": data[1][:50]}
    model.set_params(n_replicas=1)
    solo = model.fit(*data, **held)
    solo = model.fit(*data) if again else solo
    with dask.config.set({"dps.n_shards": 1}):
        other = type(model)(**model.get_params()).fit(*data, **held)
        other = other.fit(*data) if again else other
    assert (len(solo.plan_.shards), len(other.plan_.shards)) == (0, 1)
    np.testing.assert_array_equal(solo.coef_, other.coef_)
    np.testing.assert_array_equal(solo.intercept_, other.intercept_)
    np.testing.assert_equal(epochs_of(solo), epochs_of(other))
    counts = [[(a.rows, a.rank) for a in m.fit_report_.accounts] for m in (solo, other)]
    assert counts[0] == counts[1]


class OwnLoss(LogLoss):
    """The loss of a classification, in Python."""

    def evaluate(self, y: Any, raw: Any, weight: Any, out: Any) -> float:
        return super().evaluate(y, raw, weight, out)


@pytest.mark.parametrize(
    ("options", "solo"),
    [({}, True), ({"loss": OwnLoss()}, False), ({"n_replicas": 2}, False),
     ({"optimizer": "sgd"}, False), ({"scoring": "accuracy"}, False)],
)  # fmt: skip
def test_it_is_for_passes_that_return(
    options: dict[str, Any], solo: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def look(records: Any) -> None:
        threads.extend(each.name for each in threading.enumerate())

    monkeypatch.setattr("dps.training.run.solo._TICK", 0.0)
    monkeypatch.setattr("dps.estimators.fit.callbacks.showing", lambda *_: nullcontext(look))
    held = {"X_val": X[:50], "y_val": CLASSES[:50]} if "scoring" in options else {}
    model = Classifier(verbose=1, random_state=0, **options).fit(X, CLASSES, **held)
    assert (model.plan_.shards == ()) is solo
    if solo:
        assert not any("dps-replica" in name for name in threads)
    assert model.score(X, CLASSES) > 0.5


def third(do: Callable[[], None], when: str) -> Callable[[Any], Callable[..., Any]]:
    """A method that does something before or after its third call."""

    def of(method: Any) -> Callable[..., Any]:
        calls = []

        def called(*args: Any, **options: Any) -> Any:
            calls.append(1)
            if len(calls) == 3 and when == "before":
                do()
            result = method(*args, **options)
            if len(calls) == 3 and when == "after":
                do()
            return result

        return called

    return of


@pytest.mark.parametrize(
    ("owner", "name", "when", "closed"),
    [
        (SoloChannel, "end_epoch", "before", 2),
        (SoloFit, "_close", "before", 2),
        (SoloFit, "_close", "after", 3),
        (SoloFit, "_say", "before", 3),
        (SoloChannel, "end_epoch", "after", 3),
    ],
)
def test_ctrl_c_keeps_the_epochs_that_are_closed(
    owner: Any, name: str, when: str, closed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dps.training.run.solo._TICK", 0.0)
    model = Classifier(random_state=0, n_replicas=1)
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, third(press, when)(getattr(owner, name)))
        with pytest.raises(KeyboardInterrupt):
            model.fit(X, CLASSES)
    assert model.n_iter_ == len(model.history_) == closed
    assert model.fit_report_.outcome == "interrupted"
    with pytest.warns(ConvergenceWarning):
        same = Classifier(random_state=0, n_replicas=1, max_iter=closed).fit(X, CLASSES)
    np.testing.assert_array_equal(model.coef_, same.coef_)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_before_the_first_epoch_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Classifier(n_replicas=1)
    with monkeypatch.context() as patched:
        patched.setattr(Pieces, "passes", lambda pieces: press())
        with pytest.raises(KeyboardInterrupt):
            model.fit(X, CLASSES)
    assert not hasattr(model, "coef_")
    assert model.fit(X, CLASSES).score(X, CLASSES) > 0.5


def test_ctrl_c_is_heard_within_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    pressed = threading.Event()

    def beat(channel: Any) -> None:
        if not pressed.is_set():
            pressed.set()
            press()

    monkeypatch.setattr(SoloChannel, "beat", beat)
    monkeypatch.setattr("dps.training.lbfgs.pieces._BEAT_EVERY", 0.0)
    with pytest.raises(KeyboardInterrupt):
        Classifier(n_replicas=1).fit(X, CLASSES)
    assert pressed.is_set()


class Stopping:
    """A callback that ends a fit, or fails, after three epochs."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error

    def setup(self, estimator: Any, context: Any) -> None: ...
    def teardown(self, estimator: Any, context: Any) -> None: ...
    def on_fit_task_begin(self, estimator: Any, context: Any, **_: Any) -> None: ...

    def on_fit_task_end(self, estimator: Any, context: Any) -> bool:
        if context.task_name == "epoch" and context.task_id == 2 and self.error is not None:
            raise self.error
        return bool(context.task_name == "epoch" and context.task_id == 2)


@pytest.mark.parametrize("error", [None, ZeroDivisionError("no one reads")])
def test_a_callback_ends_it(error: BaseException | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dps.training.run.solo._TICK", 0.0)
    model = Classifier(random_state=0, n_replicas=1).set_callbacks(Stopping(error))
    with nullcontext() if error is None else pytest.raises(ZeroDivisionError) as caught:
        model.fit(X, CLASSES)
    assert model.n_iter_ == 3
    assert np.isfinite(model.coef_).all()
    if caught is not None:
        assert not getattr(caught.value, "__notes__", [])  # no replica has failed


def test_numbers_that_overflow_name_the_replica() -> None:
    with pytest.raises(NonFiniteError, match="scale the features") as caught:
        Classifier(n_replicas=1).fit(X * 1e300, CLASSES)
    assert (caught.value.rank, caught.value.worker) == (0, "this process")


def test_memory_that_is_missing_is_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(Pieces, "passes", fails)
    with pytest.raises(MemoryError, match="no room") as caught:
        Classifier(n_replicas=1).fit(X, CLASSES)
    assert "replica 0" in caught.value.__notes__[0]


def test_fits_in_threads_do_not_meet() -> None:
    """A model's scratch memory belongs to one fit."""
    alone = [Classifier(alpha=a, n_replicas=1).fit(X, CLASSES).coef_ for a in (0.1, 0.001)]
    found: dict[int, Any] = {}

    def fit(number: int) -> None:
        alpha = (0.1, 0.001)[number % 2]
        found[number] = Classifier(alpha=alpha, n_replicas=1).fit(X, CLASSES).coef_

    threads = [threading.Thread(target=fit, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for number, coef in found.items():
        np.testing.assert_array_equal(coef, alone[number % 2])
    assert len(found) == 8
