"""Snapshots within an epoch: the steps before which replicas pause, and what each notes.

All replicas pause before the same steps, else they would wait for each other. The steps follow from
the duration of a step, which is a mean over ranks or comes from an epoch's record, so that all
ranks have the same bits. An epoch that is shorter than the time between two snapshots has no pause,
except the first one of a fit: a pause after a few steps measures their duration.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from dps.training.replica.channel import Channel

#: Steps before the pause that measures the duration of a step.
_FIRST = 8
#: A pause is made if this share of the time between two snapshots has passed.
_ENOUGH = 0.9


class Pauses:
    """The pauses of a rank.

    every: seconds between snapshots; 0: one before each step, infinity: none.
    steps: steps per epoch, the same on every rank.
    """

    def __init__(
        self,
        channel: Channel,
        every: float,
        steps: int,
        n_ranks: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._channel, self._every, self._steps, self._n_ranks = channel, every, steps, n_ranks
        self._clock = clock
        self._each: float | None = 0.0 if every == 0 else None  # seconds per step

    def begin(self, epoch: int, began: float, spare: int | None, step: int = 0) -> int:
        """Begin an epoch; return the step before which all replicas pause.

        began: its start on the monotonic clock.
        spare: see :meth:`Channel.keep`.
        step: its first step.
        """
        self._epoch, self._began, self._spare = epoch, began, spare
        self._last, self._step, self._since = self._clock(), step, 0.0
        return self._next()

    def pause(self, step: int, loss: float, seen: int, pushes: int) -> int:
        """Take a snapshot if one is due; return the step before which the next pause is.

        loss, seen, pushes: sums of this rank over the epoch so far.
        """
        now = self._clock()
        (summed,) = self._channel.reduce([now - self._last])
        took = float(summed) / self._n_ranks
        self._since += took
        self._each = took / (step - self._step)
        self._last, self._step = now, step
        if self._since >= _ENOUGH * self._every:
            note = loss, seen, pushes, now - self._began
            self._channel.keep(self._epoch, step, note, self._spare)
            self._since = 0.0
        return self._next()

    def took(self, seconds: float) -> None:
        """Take in the duration of an epoch from its record."""
        if self._every < math.inf:
            self._each = seconds / self._steps

    def _next(self) -> int:
        if self._every == math.inf:
            return self._steps
        ahead = _FIRST
        if self._each is not None:
            left = (self._every - self._since) / max(self._each, 1e-9)
            ahead = max(1, math.ceil(min(left, self._steps)))
        return min(self._step + ahead, self._steps)
