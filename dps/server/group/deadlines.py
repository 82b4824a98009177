"""Waiting in a window: each rank that is waited for has its own deadline, and its lease.

It knows no mode and no step: only which word of whom has not come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from dps._runtime.shared.activity import Activity
from dps._runtime.shared.words import LATE, READY
from dps.errors import ServerLostError, StalledError, StoppedError, WorkerLostError
from dps.server.group.window import Field, Wait, Window, Word
from dps.server.memory.lease import loss_of

_TICK = 0.1  # seconds between looks at leases and deadlines
_SELDOM = 1.0  # and at what costs more, or where many look
#: Ranks above which each looks less often, so that the looks of all take the same time.
_MANY = 32


class Watch:
    """Deadlines of one who waits on a window: each rank has its own.

    timeout: seconds without progress of a rank after which waiting for it is an error.
    rank: the rank that waits, or that is waited for on behalf of.
    alive: called about once a second; raises if waiting makes no sense any more.
    ranks: the numbers that the window's ranks have in their group, where they are others.
    activity: the account that waits are entered in.
    """

    def __init__(
        self,
        window: Window,
        timeout: float,
        rank: int,
        alive: Callable[[], None] | None = None,
        ranks: Sequence[int] | None = None,
    ) -> None:
        self._ranks = ranks or range(window.spec.n_ranks)
        self._window = window
        self._rank = rank
        self._timeout = timeout
        often = _TICK * max(1.0, window.spec.n_ranks / _MANY)
        self.tick = min(often, _SELDOM, timeout / 4)
        self._alive = alive
        self.activity: Activity | None = None
        self._seen: dict[int, tuple[tuple[int, ...], float]] = {}
        self._looked = 0.0

    def look(self, wait: Wait) -> None:
        """Raise if waiting is in vain.

        Raises StoppedError, StalledError, ServerLostError, WorkerLostError.
        """
        window, now = self._window, time.monotonic()
        if window.stopped:
            raise StoppedError("the fit was stopped")
        if now - self._looked >= min(_SELDOM, self._timeout / 4):
            self._looked = now
            window.words.rank_add(self._rank, Field.WAITS, 1)
            if self._alive is not None:
                self._alive()
        if window.file is not None and window.file.owner_is_gone():
            raise ServerLostError(f"the worker that held shard {window.spec.shard} has died")
        for rank in self._missing(wait):
            if (lost := loss_of(window, rank)) is not None:
                raise WorkerLostError(lost, rank=self._ranks[rank])
            if not window.is_claimed(rank):  # a task, for which Dask may have no thread yet
                continue
            progress = window.progress(rank)
            seen = self._seen.get(rank)
            if seen is None or seen[0] != progress:
                self._seen[rank] = (progress, now)
            elif now - seen[1] > self._timeout:
                raise StalledError(
                    f"no progress for {self._timeout:g} s; "
                    "raise dps.timeout of dask.config if a step may take longer",
                    rank=self._ranks[rank],
                    step=progress[0] + 1,
                )

    def _missing(self, wait: Wait) -> list[int]:
        """Return the other ranks that may be waited for."""
        words, every = self._window.words, range(self._window.spec.n_ranks)
        found: Sequence[int] = every
        if isinstance(wait.of, Field):
            found = words.below(wait.of, wait.value)
        elif wait.of == Word.TURN:
            # The turn of the rank with the next ticket; before it says so, of any.
            turn = words.load(Word.TURN) + 1
            found = [r for r in every if words.rank_load(r, Field.TICKET) == turn] or every
        elif wait.of in (Word.ARRIVED, Word.DONE):  # where all have come, any may be at work
            for field in (Field.ARRIVED, Field.DONE):
                if (lacking := words.below(field, wait.value)) not in ([], [self._rank]):
                    found = lacking
                    break
        else:  # a window's word is moved on by whichever rank comes last
            ended = [words.rank_load(r, Field.ENDED) for r in every if r != self._rank]
            found = words.below(Field.ENDED, min(ended, default=0) + 1)
        return [rank for rank in found if rank != self._rank]

    def begin(self) -> None:
        """Forget what was seen: a new wait starts now."""
        self._seen.clear()

    def go_on(self, field: int, word: int, value: int) -> None:
        """Go on with a native wait that takes long, as `MappedChannel` does."""
        self.until(Wait(Word(word) if field < 0 else Field(field), value))

    def until(self, wait: Wait) -> None:
        """Block until the wait is over, looking at leases and deadlines meanwhile."""
        if self._window.ready(wait):
            return
        began = time.monotonic_ns()
        try:
            self._wait(wait)
        finally:
            if self.activity is not None:
                self.activity.waited(time.monotonic_ns() - began)

    def _wait(self, wait: Wait) -> None:
        window = self._window
        result = window.wait(wait, self.tick)
        if result == READY:
            return
        self.begin()
        while result != READY:
            self.look(wait)
            result = window.wait(wait, self.tick)
            if result != LATE and result != READY:
                raise StoppedError("the fit was stopped")
