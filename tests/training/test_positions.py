"""A fit that goes on from the end of an epoch ends as one that nobody has disturbed."""

from __future__ import annotations

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
from dps.training.run import trainer

EPOCHS = 7


def cut_after(epochs: int) -> Callable[..., Any]:
    """Instead of `train`: a first part that ends after some epochs, and one that goes on."""

    def train(job: Job, *args: Any) -> Any:
        found: list[Position] = []
        watcher = trainer.Watcher

        class Ends(watcher):  # type: ignore[misc, valid-type]
            def _fetch(self) -> bool:
                ends = super()._fetch() or len(self._history) >= epochs
                if ends and not found:
                    found.append(self.position())
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


@pytest.mark.parametrize("epochs", [1, 4])
@pytest.mark.parametrize("case", CASES)
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
