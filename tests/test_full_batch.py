"""L-BFGS over several ranks: what is no number on one of them is no value for all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dps._runtime.activity import BYTES, LOSS, PUSHES, ROWS, STEPS
from dps.data.blocks import Block, features_of
from dps.errors import NonFiniteError
from dps.losses import LogLoss, SquaredError
from dps.models import LinearModel
from dps.modes import Channel, ChannelSpec, Sync
from dps.optimizers import SGD, Constant
from dps.optimizers.update import Update
from dps.server.links import MappedLink
from dps.server.placement import place
from dps.server.window import Window, WindowSpec
from dps.training import full_batch
from dps.training.full_batch import FullBatch, _Descent
from dps.training.pieces import Pieces

#: The value and the slope that a rank has beyond the reach of its numbers.
OVERFLOWS = [(np.inf, 1.0), (np.nan, 1.0), (0.0, np.inf), (0.0, np.nan), (np.inf, np.nan)]


class Bowl:
    """A rank's rows: ``25 (x - 1)^2``, up to a point."""

    count = 1

    def native(self) -> None:
        """It is written in Python."""

    def __init__(self, reach: float, beyond: tuple[float, float]) -> None:
        self._reach, self._beyond = reach, beyond

    def evaluate(self, point: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        value, slope = 25 * float(point[0] - 1) ** 2, 50 * float(point[0] - 1)
        if point[0] > self._reach:
            value, slope = self._beyond
        return value, np.array([slope])


def on_ranks(n_ranks: int, size: int, work: Callable[[int, Channel], Any]) -> list[Any]:
    """What each rank makes of its channel, in a thread of its own; or why it could not."""
    update = Update(SGD(), 0.0, 0.0, ((0, size, False),))
    window = Window.create(
        WindowSpec("f00d", 0, n_ranks, size, "float64", 0, True, 16, ""),
        update=update,
        shared=False,
    )
    ends: list[Any] = [None] * n_ranks

    def run(rank: int) -> None:
        spec = ChannelSpec(
            rank, n_ranks, place("contiguous", [size], 1), size, "float64", Constant(0.1), update
        )
        try:
            ends[rank] = work(rank, Sync().channel(spec, [MappedLink(window, rank, 1, 10.0)]))
        except Exception as error:
            ends[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(n_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


def descend(bowls: list[Bowl], steps: int = 50) -> list[float | Exception]:
    """Where each rank ends, or why not."""
    model: Any = SimpleNamespace(
        layout=LinearModel(1, 1, SquaredError(), fit_intercept=False).layout
    )
    how = FullBatch(l2=0.0, tolerance=1e-12, patience=5, least=0.0, row_elements=1.0)

    def work(rank: int, channel: Channel) -> float:
        rows: Any = bowls[rank]
        descent = _Descent(how, rank, channel, model, rows, best=np.zeros(1))
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
def test_a_step_without_the_interpreter_has_the_bits_of_one_in_python(n_ranks: int) -> None:
    how = FullBatch(l2=1e-3, tolerance=1e-9, patience=5, least=1e-12, row_elements=3.0)

    def steps(in_python: tuple[int, ...]) -> list[Any]:
        def work(rank: int, channel: Channel) -> Any:
            meetings = channel.native_meetings()
            assert meetings is not None
            if rank in in_python:
                channel.native_meetings = lambda: None  # type: ignore[method-assign]
            model = LinearModel(3, 1, LogLoss())
            best, seen = np.zeros(model.layout.size), []
            rows = pieces(model, rank, channel)
            descent = _Descent(how, rank, channel, model, rows, best=best)
            assert (descent._steps is None) == (rank in in_python)
            while not descent.enough:
                seen.append((descent.step(), descent.point.tobytes(), best.tobytes()))
            counts = channel.activity.rows[0]
            return seen, channel.steps, counts[[PUSHES, BYTES, STEPS, ROWS, LOSS]].tolist()

        return on_ranks(n_ranks, 4, work)

    expected = steps(())
    assert len(expected[0][0]) > 5
    for in_python in {(0,), (n_ranks - 1,), tuple(range(n_ranks))}:
        assert steps(in_python) == expected
    points = [[seen[1:] for seen in ended[0]] for ended in expected]
    assert all(others == points[0] for others in points)


def test_after_a_rehearsal_the_search_goes_on_from_its_best_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(full_batch, "_SHARES", (4, 2))
    monkeypatch.setattr(full_batch, "_ROWS_A_PARAMETER", 1)
    how = FullBatch(l2=0.0, tolerance=0.0, patience=99, least=0.0, row_elements=3.0)

    def work(rank: int, channel: Channel) -> Any:
        model = LinearModel(3, 1, LogLoss())
        best = np.zeros(model.layout.size)
        descent = _Descent(how, rank, channel, model, pieces(model, rank, channel), best=best)
        descent.rehearse()  # which does not come to an end by itself
        ahead = descent.point.copy()
        rehearsed = best.copy()
        assert descent.step()[1]  # whatever it is, it is the best of all rows so far
        return ahead.tobytes(), rehearsed.tobytes(), best.tobytes()

    for ended in on_ranks(2, 4, work):
        assert ended[0] == ended[2]
        ahead, rehearsed = np.frombuffer(ended[0]), np.frombuffer(ended[1])
        assert rehearsed.any()
        np.testing.assert_allclose(ahead, rehearsed, rtol=1e-12)
