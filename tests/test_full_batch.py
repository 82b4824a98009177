"""L-BFGS over several ranks: what is no number on one of them is no value for all."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dps.errors import NonFiniteError
from dps.losses import SquaredError
from dps.models import LinearModel
from dps.modes import ChannelSpec, Sync
from dps.optimizers import SGD, Constant
from dps.optimizers.update import Update
from dps.server.links import MappedLink
from dps.server.placement import place
from dps.server.window import Window, WindowSpec
from dps.training.full_batch import FullBatch, _Descent

#: The value and the slope that a rank has beyond the reach of its numbers.
OVERFLOWS = [(np.inf, 1.0), (np.nan, 1.0), (0.0, np.inf), (0.0, np.nan), (np.inf, np.nan)]


class Bowl:
    """A rank's rows: ``25 (x - 1)^2``, up to a point."""

    count = 1

    def __init__(self, reach: float, beyond: tuple[float, float]) -> None:
        self._reach, self._beyond = reach, beyond

    def evaluate(self, point: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        value, slope = 25 * float(point[0] - 1) ** 2, 50 * float(point[0] - 1)
        if point[0] > self._reach:
            value, slope = self._beyond
        return value, np.array([slope])


def descend(bowls: list[Bowl], steps: int = 50) -> list[float | Exception]:
    """Where each rank ends, or why not."""
    n = len(bowls)
    update = Update(SGD(), 0.0, 0.0, ((0, 1, False),))
    window = Window.create(
        WindowSpec("f00d", 0, n, 1, "float64", 0, True, 16, ""), update=update, shared=False
    )
    model: Any = SimpleNamespace(
        layout=LinearModel(1, 1, SquaredError(), fit_intercept=False).layout
    )
    how = FullBatch(l2=0.0, tolerance=1e-12, patience=5, least=0.0, row_elements=1.0)
    ends: list[float | Exception] = [np.nan] * n

    def run(rank: int) -> None:
        spec = ChannelSpec(
            rank, n, place("contiguous", [1], 1), 1, "float64", Constant(0.1), update
        )
        channel = Sync().channel(spec, [MappedLink(window, rank, 1, 10.0)])
        rows: Any = bowls[rank]
        try:
            descent = _Descent(how, rank, channel, model, rows)
            for _ in range(steps):
                descent.step()
            ends[rank] = float(descent.point[0])
        except Exception as error:
            ends[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


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
