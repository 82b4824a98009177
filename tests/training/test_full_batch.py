"""L-BFGS over several ranks: what is no number on one of them is no value for all."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from groups import Group, at_once
from numpy.typing import NDArray

from dps._runtime.python import PythonGradient
from dps._runtime.shared.activity import BYTES, LOSS, PUSHES, ROWS, STEPS
from dps.data.feed.blocks import Block, features_of
from dps.errors import NonFiniteError
from dps.losses import LogLoss, SquaredError
from dps.models.linear import LinearModel
from dps.training.lbfgs import full_batch
from dps.training.lbfgs.full_batch import FullBatch, _Descent
from dps.training.lbfgs.passes import GradientSum, Pass
from dps.training.lbfgs.pieces import Pieces
from dps.training.replica.channel import Channel

#: The value and the slope that a rank has beyond the reach of its numbers.
OVERFLOWS = [(np.inf, 1.0), (np.nan, 1.0), (0.0, np.inf), (0.0, np.nan), (np.inf, np.nan)]


class Bowl:
    """A rank's rows: ``25 (x - 1)^2``, up to a point."""

    count = 1

    layout = LinearModel(1, 1, SquaredError(), fit_intercept=False).layout
    dtype = np.dtype("float64")

    def passes(self) -> Pass:
        """It is written in Python."""
        one = np.zeros((1, 1))
        block = Block(0, features_of(one, "f8"), one, None, 0, 1)
        total = GradientSum(PythonGradient(self, 0), 9, lambda: None, 9.0)
        return Pass(total, [(block, None, 0, 1)])

    def loss_gradient(self, params: Any, X: Any, y: Any, weight: Any, out: Any) -> float:
        value, slope = self.evaluate(params)
        out += slope
        return value

    def __init__(self, reach: float, beyond: tuple[float, float]) -> None:
        self._reach, self._beyond = reach, beyond

    def evaluate(self, point: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        value, slope = 25 * float(point[0] - 1) ** 2, 50 * float(point[0] - 1)
        if point[0] > self._reach:
            value, slope = self._beyond
        return value, np.array([slope])


def on_ranks(
    n_ranks: int, size: int, work: Callable[[int, Channel], Any], far: Any = ()
) -> list[Any]:
    """Results of each rank on its channel, in a thread of its own; or its error."""
    with Group(n_ranks=n_ranks, size=size, far=far, timeout=10.0) as group:
        return at_once(
            [lambda r=rank: work(r, group.channels[r]) for rank in range(n_ranks)]  # type: ignore[misc]
        )


def descend(bowls: list[Bowl], steps: int = 50) -> list[float | Exception]:
    """Final values of each rank, or its error."""
    model: Any = SimpleNamespace(
        layout=LinearModel(1, 1, SquaredError(), fit_intercept=False).layout
    )
    how = FullBatch(
        l2=0.0, l1=0.0, tolerance=1e-12, relative=np.inf, patience=5, least=0.0, width=0.0,
        near=0.0, row_elements=1.0,
    )  # fmt: skip

    def work(rank: int, channel: Channel) -> float:
        rows: Any = bowls[rank]
        descent = _Descent(how, channel, model, rows, best=np.zeros(1))
        for _ in range(steps):
            descent.step()
        return float(descent.point[0])

    return on_ranks(len(bowls), 1, work)


@pytest.mark.parametrize("other", OVERFLOWS)
@pytest.mark.parametrize("one", OVERFLOWS)
def test_a_step_beyond_the_numbers_is_shortened(
    one: tuple[float, float], other: tuple[float, float]
) -> None:
    # The first step goes to 50.
    ends = descend([Bowl(10.0, one), Bowl(20.0, (1e9, 1.0)), Bowl(12.0, other)])
    assert ends == pytest.approx([1.0, 1.0, 1.0], abs=1e-6)


@pytest.mark.parametrize("beyond", OVERFLOWS)
def test_a_start_beyond_the_numbers_is_an_error_on_all_ranks(beyond: tuple[float, float]) -> None:
    for ended in descend([Bowl(np.inf, beyond), Bowl(-1.0, beyond)]):
        assert isinstance(ended, NonFiniteError)
        assert "where the search starts" in str(ended)
        assert ended.step == 1


def pieces(model: LinearModel, rank: int, channel: Channel, length: int = 500) -> Pieces:
    """Some rows of a rank in two blocks, one of them in an order."""
    rng = np.random.default_rng(rank)
    X = rng.normal(size=(length, model.n_features)) * np.arange(1, 1 + model.n_features)
    y = np.where(rng.random((length, 1)) < 1 / (1 + np.exp(-X[:, :1] - 1)), 1.0, -1.0)
    half = length // 2
    rows = [
        (Block(2 * rank, features_of(X[:half], "f8"), y[:half], None, 0, half), None),
        (Block(2 * rank + 1, features_of(X[half:], "f8"), y[half:], None, 0, half),
         rng.permutation(length - half)),
    ]  # fmt: skip
    return Pieces(model, lambda: iter(rows), length, model.n_features, channel)


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_models_in_python_and_ranks_that_are_far_have_the_same_bits(
    n_ranks: int,
) -> None:
    how = FullBatch(
        l2=1e-3, l1=0.0, tolerance=1e-9, relative=np.inf, patience=5, least=1e-12, width=0.0,
        near=0.0, row_elements=3.0,
    )  # fmt: skip

    class InPython(LinearModel):
        kernel = None  # type: ignore[assignment]

    def steps(others: tuple[int, ...], far: bool = False) -> list[Any]:
        def work(rank: int, channel: Channel) -> Any:
            kind = InPython if rank in others and not far else LinearModel
            model = kind(3, 1, LogLoss())
            best, seen = np.zeros(model.layout.size), []
            rows = pieces(model, rank, channel)
            descent = _Descent(how, channel, model, rows, best=best)
            while not descent.enough:
                seen.append((descent.step(), descent.point.tobytes(), best.tobytes()))
            counts = channel.activity.rows[0]
            return seen, channel.steps, counts[[PUSHES, BYTES, STEPS, ROWS, LOSS]].tolist()

        return on_ranks(n_ranks, 4, work, [(rank, 0) for rank in others] if far else ())

    expected = steps(())
    assert len(expected[0][0]) > 5
    for others in {(0,), (n_ranks - 1,), tuple(range(n_ranks))}:
        assert steps(others) == expected
        here = [ended[:2] for ended in steps(others, far=True)]
        assert here == [ended[:2] for ended in expected]
    points = [[seen[1:] for seen in ended[0]] for ended in expected]
    assert all(other == points[0] for other in points)


def test_after_a_rehearsal_the_search_goes_on_from_its_best_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(full_batch, "_SHARES", (4, 2))
    monkeypatch.setattr(full_batch, "_ROWS_A_PARAMETER", 1)
    how = FullBatch(
        l2=0.0, l1=0.0, tolerance=0.0, relative=np.inf, patience=99, least=0.0, width=0.0,
        near=0.0, row_elements=3.0,
    )  # fmt: skip

    def work(rank: int, channel: Channel) -> Any:
        model = LinearModel(3, 1, LogLoss())
        best = np.zeros(model.layout.size)
        descent = _Descent(how, channel, model, pieces(model, rank, channel), best=best)
        descent.search_some()  # which does not come to an end by itself
        ahead = descent.point.copy()
        searched = best.copy()
        assert descent.step()[1]  # whatever it is, it is the best of all rows so far
        return ahead.tobytes(), searched.tobytes(), best.tobytes()

    for ended in on_ranks(2, 4, work):
        assert ended[0] == ended[2]
        ahead, searched = np.frombuffer(ended[0]), np.frombuffer(ended[1])
        assert searched.any()
        np.testing.assert_allclose(ahead, searched, rtol=1e-12)
