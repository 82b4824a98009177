"""Snapshots within an epoch: after which steps the replicas pause for one, and what each notes.

All pause after the same steps, or they would wait for each other. What decides is how long a step
takes, by a mean over ranks or the record of an epoch, which has the same bits for all. An epoch
that is shorter than the time between two snapshots has no pause, but for the first one of a fit:
there a pause after a few steps finds out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from dps.training.replica.channel import Channel

#: Steps after which it is found out how long one takes.
_FIRST = 8
#: A share of the time between two snapshots after which there is one.
_ENOUGH = 0.9


class Pauses:
    """The pauses of a rank.

    every: seconds between snapshots; 0: one after each step, infinity: none.
    steps: steps of an epoch, on every rank.
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
        self._each: float | None = 0.0 if every == 0 else None  # seconds of a step

    def begin(self, epoch: int, began: float, spare: int | None, step: int = 0) -> int:
        """Begin an epoch; the step before which all pause.

        began: when it did, on the monotonic clock.
        spare: see :meth:`Channel.keep`.
        step: the first one.
        """
        self._epoch, self._began, self._spare = epoch, began, spare
        self._last, self._step, self._since = self._clock(), step, 0.0
        return self._next()

    def pause(self, step: int, loss: float, seen: int, pushes: int) -> int:
        """Take a snapshot before a step, if it is time; the step before which the next pause is.

        loss, seen, pushes: what this rank has summed up in the epoch.
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
        """An epoch has taken so long, as its record says."""
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
