"""Positions within an epoch: where a fit pauses, and goes on."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from inside import carry_of

import dps
from dps.estimators.fit import fit as fitting
from dps.training.job import Job
from dps.training.position import Position
from dps.training.replica.pauses import Pauses
from dps.training.run import trainer

EPOCHS = 7


def cut_after(epochs: int) -> Callable[..., Any]:
    """Instead of `train`: a first part that ends after some epochs, and one that goes on."""

    def train(job: Job, *args: Any) -> Any:
        found: list[Position] = []
        watcher = trainer.Watcher

        class Ends(watcher):  # type: ignore[misc, valid-type]
            def _fetch(self) -> bool:
                ends = super()._fetch() or len(self.progress.history) >= epochs
                if ends and not found:
                    found.append(self.progress.position())
                return bool(ends)

        stopping = replace(job.stopping, max_iter=epochs)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trainer, "Watcher", Ends)
            trainer.train(replace(job, stopping=stopping), *args)
        assert found[0].epochs == epochs
        return trainer.train(replace(job, position=found[0]), *args)

    return train


def data(sparse: bool = False) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 8)).astype(np.float32)
    y = (X @ rng.normal(size=8) + rng.logistic(size=600) > 0).astype(int)
    if sparse:
        X = scipy.sparse.random_array((600, 5000), density=0.001, format="csr", random_state=rng)
    return X, y


CASES = {
    "adam": (dps.LinearClassifier, {"optimizer": "adam"}, False),
    "average": (dps.LinearClassifier, {"optimizer": "sgd", "average": True}, False),
    "allreduce": (dps.LinearClassifier, {"optimizer": "momentum", "mode": "allreduce"}, False),
    "async": (dps.LinearClassifier, {"optimizer": "adam", "mode": "async", "n_replicas": 1}, False),
    "keys": (dps.LinearClassifier, {"optimizer": "sgd"}, True),
    "momentum keys": (dps.LinearClassifier, {"optimizer": "momentum"}, True),
    "early stopping": (
        dps.LinearClassifier,
        {"optimizer": "sgd", "learning_rate": 2.0, "early_stopping": True, "n_iter_no_change": 20},
        False,
    ),
    "table": (dps.FMClassifier, {"max_embeddings": 4000, "hidden_layer_sizes": (4,)}, True),
    "mlp": (dps.MLPClassifier, {"hidden_layer_sizes": (8,), "dropout": 0.3}, False),
}


@pytest.mark.parametrize(("case", "epochs"), [*zip(CASES, itertools.cycle([1, 4]), strict=False)])
def test_a_fit_in_two_parts_has_the_bits_of_one(
    case: str, epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, options, sparse = CASES[case]
    X, y = data(sparse)

    def fitted() -> Any:
        made = kind(max_iter=EPOCHS, tol=None, random_state=0, batch_size=64)
        return made.set_params(**{"n_replicas": 2} | options).fit(X, y)

    whole = fitted()
    monkeypatch.setattr(fitting, "train", cut_after(epochs))
    parts = fitted()
    assert [r["epoch"] for r in parts.history_] == list(range(1, EPOCHS + 1))
    for one, other in zip(whole.history_, parts.history_, strict=True):
        assert (one["loss"], one["rows"]) == (other["loss"], other["rows"])
    np.testing.assert_array_equal(carry_of(whole).params, carry_of(parts).params)
    np.testing.assert_array_equal(carry_of(whole).state, carry_of(parts).state)
    np.testing.assert_array_equal(whole.predict_proba(X), parts.predict_proba(X))


@pytest.mark.parametrize("options", [{"optimizer": "lbfgs"}, {"mode": "async"}])
def test_steps_from_all_rows_go_on_to_the_same_minimum(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = data()

    def fitted() -> Any:
        return dps.LinearClassifier(tol=1e-6, random_state=0, n_replicas=2, **options).fit(X, y)

    whole = fitted()
    monkeypatch.setattr(fitting, "train", cut_after(3))
    parts = fitted()
    np.testing.assert_allclose(whole.coef_, parts.coef_, atol=1e-3)
    assert parts.history_[-1]["epoch"] == len(parts.history_) > 3


class Clock:
    """Steps that take so long, the clock they are measured by, and the one rank's channel."""

    def __init__(self, each: float) -> None:
        self.now, self.each = 0.0, each
        self.kept: list[tuple[int, int]] = []
        self.reduced = 0

    def __call__(self) -> float:
        return self.now

    def pauses(self, every: float, steps: int) -> Pauses:
        return Pauses(self, every, steps, 1, clock=self)  # type: ignore[arg-type]

    def reduce(self, values: Any) -> Any:
        self.reduced += 1
        return np.array(values)

    def keep(self, epoch: int, steps: int, note: Any, spare: Any) -> None:
        self.kept.append((epoch, steps))

    def run(self, made: Pauses, epoch: int, steps: int) -> None:
        began = self.now
        until, step = made.begin(epoch, began, None), 0
        while step < steps:
            while step < until:
                self.now += self.each
                step += 1
            if step < steps:
                until = made.pause(step, 0.0, 0, 0)
                assert until > step
        made.took(self.now - began)


@pytest.mark.parametrize(
    ("each", "every", "steps", "kept", "reduced"),
    [
        (0.001, 10.0, 1000, 0, 1),  # one look at how long a step takes, in the first epoch
        (1.0, 10.0, 100, 9, 10),
        (1.0, 10.0, 8, 0, 0),
        (25.0, 10.0, 5, 0, 0),  # found out at the end of the epoch, see the next one
        (0.5, 0.0, 10, 9, 9),
        (1.0, float("inf"), 10, 0, 0),
    ],
)
def test_pauses_come_as_often_as_asked_for(
    each: float, every: float, steps: int, kept: int, reduced: int
) -> None:
    clock = Clock(each)
    made = clock.pauses(every, steps)
    clock.run(made, 0, steps)
    assert (len(clock.kept), clock.reduced) == (kept, reduced)
    clock.run(made, 1, steps)
    of_second = [step for epoch, step in clock.kept if epoch == 1]
    assert of_second == list(
        range(
            *(
                (10, steps, 10)
                if each == 1 and steps > 10 and every == 10
                else (1, steps)
                if each >= every
                else (0, 0)
            )
        )
    )


def test_a_step_that_becomes_slower_is_noticed_at_the_next_pause() -> None:
    clock = Clock(0.01)
    made = clock.pauses(10.0, 10_000)
    clock.run(made, 0, 10_000)
    assert len(clock.kept) == 9
    clock.each = 0.1
    clock.run(made, 1, 10_000)
    of_second = [step for epoch, step in clock.kept if epoch == 1]
    assert of_second[0] == 1000
    assert set(np.diff(of_second)) <= {99, 100, 101}
