"""Parts of tensors as they were at one moment, which callers read in pieces.

A shard keeps such a copy for one caller, who gives it back when it has read it. Of a caller that
dies it is given up once it has not been read for the server's `timeout`, when the next one is made.
A mirror has no copies: where it leads from now on, callers begin again.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps.server.mirroring import Taken


@dataclass
class _Kept:
    part: Taken
    used: float


class Frozen:
    """The copies at a shard, by the number of the part and the caller's token.

    Parameters
    ----------
    timeout : float
        Seconds after which one that is not read is given up.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._lock = threading.Lock()
        self._kept: dict[tuple[int, str], _Kept] = {}

    def add(self, at: int, token: str, part: Taken) -> tuple[int, Any, int]:
        """Keep one; its rows, their ids (None: it is no part of a table), and its version."""
        ending = time.monotonic() - self._timeout
        with self._lock:
            self._kept = {name: each for name, each in self._kept.items() if each.used > ending}
            self._kept[at, token] = _Kept(part, time.monotonic())
        return part.values.shape[1], part.ids, part.version

    def rows(self, at: int, token: str, start: int, stop: int) -> NDArray[np.floating]:
        """Some rows of one, (1 + state_rows, n, width).

        Raises
        ------
        LookupError
            It is not here any more, or was kept by another shard.
        """
        with self._lock:
            kept = self._kept[at, token]
            kept.used = time.monotonic()
        return kept.part.values[:, start:stop]

    def discard(self, at: int, token: str) -> None:
        """Give one back."""
        with self._lock:
            self._kept.pop((at, token), None)
