"""Copies of parts at one moment, which callers read in pieces.

A caller freezes a part, reads its rows and thaws it. If the caller dies, a timer drops the copy
after one to two times the server's `timeout`. Copies are not mirrored: if a mirror takes over,
callers start again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps.parameter_server.shard.mirroring import PartSnapshot


@dataclass
class _Copy:
    part: PartSnapshot
    used: float


class Frozen:
    """The copies on a shard, by part number and the caller's token.

    timeout: seconds without a read after which the next check drops a copy.
    """

    def __init__(self, timeout: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout, self._clock = timeout, clock
        self._lock = threading.Lock()
        self._kept: dict[tuple[int, str], _Copy] = {}
        self._timer: threading.Timer | None = None  # while there are copies

    def add(self, at: int, token: str, part: PartSnapshot) -> tuple[int, Any, int]:
        """Add a copy; return its number of rows, their ids (None for arrays) and its version."""
        with self._lock:
            self._kept[at, token] = _Copy(part, self._clock())
            if self._timer is None:
                self._arm()
        return part.values.shape[1], part.ids, part.version

    def rows(self, at: int, token: str, start: int, stop: int) -> NDArray[np.floating]:
        """Return rows of a copy, (1 + state_rows, n, width).

        Raises LookupError: the copy was dropped, or is on another shard.
        """
        with self._lock:
            kept = self._kept[at, token]
            kept.used = self._clock()
        return kept.part.values[:, start:stop]

    def discard(self, at: int, token: str) -> None:
        """Drop a copy."""
        with self._lock:
            self._kept.pop((at, token), None)
            if not self._kept:
                self._disarm()

    def close(self) -> None:
        """Drop all copies."""
        with self._lock:
            self._kept = {}
            self._disarm()

    def look(self) -> None:
        """Drop copies that have not been read for long; the timer calls it."""
        ending = self._clock() - self._timeout
        with self._lock:
            self._kept = {name: each for name, each in self._kept.items() if each.used > ending}
            self._disarm()
            if self._kept:
                self._arm()

    def _arm(self) -> None:
        self._timer = threading.Timer(self._timeout, self.look)
        self._timer.daemon = True
        self._timer.start()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
