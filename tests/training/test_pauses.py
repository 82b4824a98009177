"""When the replicas of a fit pause for a snapshot within an epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dps.training.replica import pauses
from dps.training.replica.pauses import Pauses


class Clock:
    """Steps that take so long; and the channel of the one rank there is."""

    def __init__(self, each: float) -> None:
        self.now, self.each = 0.0, each
        self.kept: list[tuple[int, int]] = []
        self.reduced = 0

    def monotonic(self) -> float:
        return self.now

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
    each: float, every: float, steps: int, kept: int, reduced: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(each)
    monkeypatch.setattr(pauses, "time", clock)
    made = Pauses(clock, every, steps, 1)  # type: ignore[arg-type]
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pauses, "time", clock)
        made = Pauses(clock, 10.0, 10_000, 1)  # type: ignore[arg-type]
        clock.run(made, 0, 10_000)
        assert len(clock.kept) == 9
        clock.each = 0.1
        clock.run(made, 1, 10_000)
    of_second = [step for epoch, step in clock.kept if epoch == 1]
    assert of_second[0] == 1000
    assert set(np.diff(of_second)) <= {99, 100, 101}
