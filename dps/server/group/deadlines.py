"""Waiting in a window: each awaited rank has its own deadline and lease.

It sees neither modes nor steps, only whose word is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from dps._runtime.shared.activity import Activity
from dps._runtime.shared.words import LATE, READY
from dps.errors import ServerLostError, StalledError, StoppedError, WorkerLostError
from dps.server.group.window import Field, Wait, Window, Word
from dps.server.memory.lease import loss_of

_TICK = 0.1  # seconds between checks of leases and deadlines
_SELDOM = 1.0  # seconds between more expensive checks, or if many ranks wait
#: With more ranks each checks less often, so that all checks together take the same time.
_MANY = 32


class Watch:
    """Deadlines for one waiting rank: each rank that it waits for has its own.

    timeout: seconds without progress of a rank after which waiting for it is an error.
    rank: the rank that waits, or on whose behalf a thread waits.
    alive: called about once a second; raises if waiting is pointless.
    ranks: numbers of the window's ranks in their group, if these differ.
    activity: the account to which waits are added.
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
        """Raise if the wait cannot end.

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
            if not window.is_claimed(rank):  # its task has not begun; Dask may have no free thread
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
        """Return the other ranks that the wait may depend on."""
        words, every = self._window.words, range(self._window.spec.n_ranks)
        found: Sequence[int] = every
        if isinstance(wait.of, Field):
            found = words.below(wait.of, wait.value)
        elif wait.of == Word.TURN:
            # The turn belongs to the rank with the next ticket; before a rank announces it, to any.
            turn = words.load(Word.TURN) + 1
            found = [r for r in every if words.rank_load(r, Field.TICKET) == turn] or every
        elif wait.of in (Word.ARRIVED, Word.DONE):  # once all have arrived, any may be working
            for field in (Field.ARRIVED, Field.DONE):
                if (lacking := words.below(field, wait.value)) not in ([], [self._rank]):
                    found = lacking
                    break
        else:  # the last rank to arrive advances a window's word
            ended = [words.rank_load(r, Field.ENDED) for r in every if r != self._rank]
            found = words.below(Field.ENDED, min(ended, default=0) + 1)
        return [rank for rank in found if rank != self._rank]

    def begin(self) -> None:
        """Forget what was seen: a new wait begins."""
        self._seen.clear()

    def go_on(self, field: int, word: int, value: int) -> None:
        """Continue a long native wait, for `MappedChannel`."""
        self.until(Wait(Word(word) if field < 0 else Field(field), value))

    def until(self, wait: Wait) -> None:
        """Block until the wait is over, checking leases and deadlines meanwhile."""
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
