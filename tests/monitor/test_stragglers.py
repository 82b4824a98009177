"""The rule that names a slow replica, told by hand what replicas have done."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cases import pairs

from dps.monitor.shard.stragglers import Moment, Stragglers, Verdict

#: From seconds and rank to how far the rank is.
Story = Callable[[float, int], Moment]


def told(
    story: Story, seconds: float, *, n: int = 3, together: bool = True
) -> dict[float, Verdict]:
    """Verdicts of the rule by time, if it looks four times a second."""
    watched, found = Stragglers(together=together), {}
    for tick in range(int(4 * seconds) + 1):
        for verdict in watched.look(tick / 4, [story(tick / 4, rank) for rank in range(n)]):
            found[tick / 4] = verdict
    return found


def sync(paces: dict[int, float], step: float = 0.01, rows: int = 100) -> Story:
    """Ranks that take steps of `step` seconds together; some compute for longer than others."""

    def story(now: float, rank: int) -> Moment:
        pace = paces.get(rank, 1.0)
        steps = int(now / (step * max(paces.values(), default=1.0)))
        return Moment(rows * steps, steps, steps * step * pace, steps)

    return story


@pairs(
    step=[0.001, 0.05],
    pace=[2.5, 4.0, 40.0],
    n=[2, 3, 10],
)
def test_who_computes_four_times_as_long_is_named_within_five_seconds(
    n: int, pace: float, step: float
) -> None:
    found = told(sync({1: pace}, step), 10, n=n)
    ((when, verdict),) = found.items()
    assert (verdict.rank, verdict.slow) == (1, True)
    assert verdict.ratio == pytest.approx(1 / pace, rel=0.01)
    assert when <= 5 or step * pace * 4 > 5


def test_equals_are_not_named_nor_is_one_alone() -> None:
    assert not told(sync({}), 30)
    assert not told(sync({0: 1.4, 2: 0.8}), 30)
    assert not told(sync({0: 5.0}), 30, n=1)


def test_who_stands_still_is_named_while_all_others_wait() -> None:
    def story(now: float, rank: int) -> Moment:
        steps = min(int(now / 0.1), 30)  # after three seconds no one gets on
        return Moment(100 * steps, steps, 0.09 * steps, steps + (rank != 2 and now > 3))

    ((when, verdict),) = told(story, 10).items()
    assert 5 <= when <= 6
    assert (verdict.rank, verdict.slow, verdict.ratio) == (2, True, None)
    assert "waiting for it" in verdict.why


def test_a_long_step_of_all_is_nobodys_fault() -> None:
    def story(now: float, rank: int) -> Moment:
        # Passes of ten seconds; the last rank takes eleven.
        passes, within = divmod(now, 11)
        steps = int(passes)
        arrived = steps + (within >= 10 and rank != 2)
        return Moment(100 * steps, steps, (10 + (rank == 2)) * steps + within, arrived)

    assert not told(story, 60)


def test_in_async_nobody_is_waited_for() -> None:
    def story(now: float, rank: int) -> Moment:
        steps = int(100 * now) // (4 if rank == 1 else 1)
        return Moment(50 * steps, steps, now, steps)

    found = told(story, 10, together=False)
    ((_, verdict),) = found.items()
    assert (verdict.rank, verdict.ratio) == (1, pytest.approx(0.25, abs=0.03))


def test_who_has_caught_up_is_told_too_and_once() -> None:
    def story(now: float, rank: int) -> Moment:
        steps = int(100 * min(now, 5)) // (4 if rank == 0 else 1) + int(100 * max(0.0, now - 5))
        return Moment(50 * steps, steps, now, steps)

    found = told(story, 20, together=False)
    assert [(v.rank, v.slow) for v in found.values()] == [(0, True), (0, False)]
    assert [v.why.endswith("again") for v in found.values()] == [False, True]
    assert 5 < max(found) < 9
