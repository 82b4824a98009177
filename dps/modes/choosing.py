"""The rule that chooses a mode from figures of a fit's first steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any

from dps.modes.allreduce import AllReduce
from dps.modes.asynchronous import Async
from dps.modes.base import Mode
from dps.modes.hybrid import Hybrid
from dps.modes.synchronous import Sync
from dps.monitor.words import duration, percent

#: A replica is slow if a row takes this many times as long as usual.
_SLOW = 1.5
#: A share of the time that is large, as for advice (``monitor/advice.py``).
_LARGE_SHARE = 0.35
#: Expected speed-up that another mode must have.
_GAIN = 1.25
#: Least time in seconds that it must be expected to save; a new group takes some.
_MIN_SAVED_SECONDS = 1.0
#: Local steps between two reductions.
_PERIOD = 16
#: Largest distance of replicas in steps; and the number of replicas up to which stale dense
#: gradients, about as many updates old as there are other replicas, are as good as fresh ones.
_DELAY, _FEW = 8, 8


@dataclass(frozen=True)
class Figures:
    """Figures of a fit: its setup, and measurements of some steps in sync."""

    rows: tuple[int, ...]  # rows that each replica has used, in rank order
    # Seconds of each replica: for gradients, for moving parameters and gradients, and for waiting.
    compute: tuple[float, ...]
    communicate: tuple[float, ...]
    wait: tuple[float, ...]
    hosts: int  # number of hosts of the replicas
    by_keys: bool  # whether a step moves only what its batch touches
    table: bool  # whether the model has a table
    epoch_rows: tuple[int, ...]  # training rows of each replica
    epoch_steps: int  # steps per epoch
    left: float  # largest number of seconds that the fit would continue in sync


@dataclass(frozen=True)
class Choice:
    """A mode, and the reason for it."""

    mode: Mode
    reason: str  # includes the figures that decided
    gain: float = 1.0  # expected speed relative to sync

    def line(self) -> str:
        """The reason in words.

        Examples
        --------
        >>> Choice(Sync(), "one replica does the same in every mode").line()
        "mode='auto' chose sync: one replica does the same in every mode"
        """
        return f"mode='auto' chose {self.mode.described}: {self.reason}"


def choose(figures: Figures, begun: Mode) -> Choice:
    """Return the mode to continue in.

    begun: the current mode, which is sync.
    Returns `begun` if no other mode is better.

    Examples
    --------
    >>> even = Figures(
    ...     (90, 90, 90), (1.0, 1.0, 1.0), (0.1, 0.1, 0.1), (0.1, 0.1, 0.1), hosts=1,
    ...     by_keys=False, table=False, epoch_rows=(900, 900, 900), epoch_steps=9, left=60.0,
    ... )
    >>> choose(even, Sync()).line()
    "mode='auto' chose sync: replicas are even, 8% of the time is moving data and 8% waiting"
    >>> from dataclasses import replace
    >>> slow = replace(even, compute=(1.0, 4.0, 1.0), wait=(3.0, 0.0, 3.0))
    >>> print(choose(slow, Sync()).line())  # doctest: +NORMALIZE_WHITESPACE
    mode='auto' chose sync (backups=1, late_gradients='add'): replica 1 takes 4.0 times as long for
    a row as is usual
    """
    if len(figures.rows) == 1:
        return Choice(begun, "one replica does the same in every mode")
    if not sum(figures.compute):
        return Choice(begun, "monitoring is off, so nothing was measured")
    other = _other(figures, begun)
    if other.mode == begun:
        return other
    saved = figures.left * (1.0 - 1.0 / other.gain)
    if saved < _MIN_SAVED_SECONDS:
        return Choice(
            begun,
            f"{other.mode.described} would save {duration(saved)} at most, less than a change "
            f"takes ({other.reason})",
        )
    return other


def _other(figures: Figures, begun: Mode) -> Choice:
    """Return the fastest mode for a fit of unlimited length."""
    parts = figures.compute, figures.communicate, figures.wait
    compute, communicate, wait = map(sum, parts)
    whole, n = compute + communicate + wait, len(figures.rows)
    idle = 1.0 - compute / whole
    shares = (
        f"{percent(communicate / whole)} of the time is moving data and {percent(wait / whole)} "
        "waiting"
    )
    as_begun: dict[str, Any] = {"access": begun.access}
    if slow := _slow(figures):
        return _without(slow, figures, begun, as_begun)
    if figures.table and idle > _LARGE_SHARE:
        reason = f"{shares}, and rows of a table need not wait for those of others"
        return Choice(Hybrid(**as_begun), reason, 1.0 / (1.0 - idle / 2.0))
    if figures.hosts > 1 and idle > _LARGE_SHARE:
        between = f"{shares}, between {figures.hosts} hosts"
        if figures.by_keys:  # with n replicas each takes an n-th of the steps of an epoch
            gain = whole / (compute + communicate / n)
            return Choice(Async(**as_begun), f"{between}, and few keys are in two batches", gain)
        gain = whole / (compute + (communicate + wait) / _PERIOD)
        return Choice(AllReduce(**as_begun, period=_PERIOD), between, gain)
    if figures.hosts == 1 and wait > _LARGE_SHARE * whole:
        if not figures.by_keys and n > _FEW:
            return Choice(begun, f"{shares}, but gradients of {n} replicas would be too old")
        gain = whole / (compute + communicate)
        reason = f"{shares}, though no replica is slow"
        return Choice(Async(**as_begun, max_delay=_DELAY), reason, gain)
    return Choice(begun, f"replicas are even, {shares}")


def _per_row(seconds: Sequence[float], rows: Sequence[int]) -> list[float]:
    return [spent / max(1, seen) for spent, seen in zip(seconds, rows, strict=True)]


def _slow(figures: Figures) -> list[int]:
    """Return the ranks that take much longer per row than usual."""
    paces = _per_row(figures.compute, figures.rows)
    usual = median_low(paces)
    return [rank for rank, pace in enumerate(paces) if pace > _SLOW * usual]


def _without(
    slow: Sequence[int], figures: Figures, begun: Mode, as_begun: Mapping[str, Any]
) -> Choice:
    """Choose not to wait for slow replicas, if possible."""
    paces, n = _per_row(figures.compute, figures.rows), len(figures.rows)
    usual, slowest = median_low(paces), max(paces)
    kept = max(pace for rank, pace in enumerate(paces) if rank not in slow)
    moving = median_low(_per_row(figures.communicate, figures.rows))
    counted = n - len(slow) + sum(kept / paces[rank] for rank in slow)
    gain = (slowest + moving) / (kept + moving) * counted / n
    who = f"replica {slow[0]} takes" if len(slow) == 1 else f"{len(slow)} replicas take"
    most = "up to " if len(slow) > 1 else ""
    reason = f"{who} {most}{slowest / usual:.1f} times as long for a row as is usual"
    if len(slow) > (n - 1) // 2:
        return Choice(begun, f"{reason}, and {len(slow)} of {n} are too many to go on without")
    if min(figures.epoch_rows) < figures.epoch_steps:
        return Choice(begun, f"{reason}, but backups need rows of every replica in each step")
    if gain < _GAIN:
        return Choice(begun, f"{reason}, but little would be gained by not waiting")
    return Choice(Sync(**as_begun, backups=len(slow), late_gradients="add"), reason, gain)
