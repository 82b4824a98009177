"""Operations on a window by keys: what sparse batches pull and push.

They do what their counterparts on whole vectors do, for the elements that a batch touches
alone. A parameter that nobody touches stays behind, and is brought up to date when it is
pulled or pushed, exactly (``_kernels/lazy.pyx``). ``window.since`` says how far each
is; it is written by whoever writes the parameter, and set back to zero when all are
settled. In the last step of an epoch, each rank does that in sync for its slice, before DONE,
in allreduce for its own copy; in async the closer of the epoch does, behind the closed gate,
or rank 0 where all have met to validate. Outside of an epoch nothing is lazy, so snapshots
and records need not know. A crash while that is under way leaves parameters that nobody
uses: the fit ends, and its last closed epoch has a snapshot.

A list of keys that is None is the list of the rank's last operation, which is not sent again.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dps._kernels.keys import deliver_keys, merge_keys
from dps._kernels.lazy import LazyUpdate
from dps._kernels.reduce import all_finite
from dps.errors import NonFiniteError
from dps.optimizers.update import Rates
from dps.server.operations import count_push, meet
from dps.server.window import Operation, Window

__all__ = ["Aside", "Keys", "Span", "aside", "exchange", "finite"]

Keys = NDArray[np.int32]

#: A method of :class:`Rates`.
Span = Callable[[Rates, int], tuple[NDArray[np.float64], int]]


class Aside:
    """What a rank's operations by keys keep in the process that runs them.

    Parameters
    ----------
    window : Window
    rank : int
    """

    def __init__(self, window: Window, rank: int) -> None:
        start, stop = window.slice(rank)
        update = window.update
        self.marks = np.zeros(stop - start, np.int32)
        self.merged = np.empty(stop - start, np.int32)
        self.sums = np.empty(stop - start, window.spec.dtype)
        self._rates = None if update is None else update.rates
        self._lazy = None if update is None else update.lazily(window.spec.dtype)
        self._epoch = -1
        self._keys: Keys = np.empty(0, np.int32)

    def keys(self, told: Keys | None) -> Keys:
        """The keys that are meant, and will be by the next None."""
        if told is not None:
            self._keys = np.array(told, np.int32)  # the gateway uses its memory again
        return self._keys

    def lazy(self, epoch: int, span: Span) -> LazyUpdate:
        """The window's update in an epoch, with the rates of `span`."""
        assert self._lazy is not None
        assert self._rates is not None
        if epoch != self._epoch:
            self._lazy.begin(*span(self._rates, epoch))
            self._epoch = epoch
        return self._lazy


def aside(window: Window, rank: int) -> Aside:
    """What is kept for a rank."""
    if rank not in window.aside:
        window.aside[rank] = Aside(window, rank)
    kept: Aside = window.aside[rank]
    return kept


def exchange(
    window: Window,
    rank: int,
    sequence: int,
    values: NDArray[np.floating],
    keys: Keys | None,
    rows: int,
    use: Callable[[Keys, NDArray[np.floating]], None],
) -> Operation:
    """:func:`meet` by keys: each rank calls ``use(keys, mean)`` on what is of its slice."""
    kept = aside(window, rank)
    keys = kept.keys(keys)

    def fill() -> None:
        given = np.require(values, window.spec.dtype, ["C", "A"])
        if np.may_share_memory(given, window.slots):  # the gateway has read them to there
            given = given.copy()
        finite = deliver_keys(
            keys, given, window.slice_width, window.keys[rank], window.slots[rank],
            window.key_counts[rank], window.spec.size,
        )  # fmt: skip
        if not finite:
            raise NonFiniteError.of("gradient", rank=rank, step=sequence)
        count_push(window, rank, given.nbytes + keys.nbytes)

    def work(counts: NDArray[np.int64]) -> None:
        n = merge_keys(
            window.keys, window.slots, window.key_counts, counts, rank, window.slice(rank)[0],
            kept.marks, kept.merged, kept.sums, max(1.0, float(counts.sum())),
        )  # fmt: skip
        use(kept.merged[:n], kept.sums[:n])

    yield from meet(window, rank, sequence, rows, fill, work)


def finite(values: NDArray[np.floating], rank: int, sequence: int) -> NDArray[np.floating]:
    """The values of a gradient, aligned; an error if they are not finite."""
    values = np.require(values, requirements=["C", "A"])
    if not all_finite(values):
        raise NonFiniteError.of("gradient", rank=rank, step=sequence)
    return values
