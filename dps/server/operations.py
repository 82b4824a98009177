"""Operations on a window that modes share: claim, exchange, reduce, report, close, snapshot.

Each is a generator over one window that yields what it waits for, so that the same
lines run blocking in a replica that maps the window, and in the Actor's event loop
on behalf of one that cannot. What makes a mode lies in ``dps/modes``.

Protocol of an epoch's end. A rank writes its report, then ENDED, then adds itself to
REPORTED of the epoch's parity; whoever makes that count full is the closer. The
closer takes the snapshots, writes the record, then CLOSED. A rank reports epoch e + 2
only after e is closed, so two sets of reports, of even and of odd epochs, are enough.
A crash before ENDED leaves the epoch open and the last snapshot in place; a crash of
the closer before CLOSED likewise: the record and the snapshot count only once CLOSED
says so, and the snapshot before it lies in the other of the two places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps._kernels.activity import BYTES, EPOCH, PUSHES
from dps._kernels.reduce import all_finite, copy_finite, mean_of_slots
from dps.errors import FencedError, NonFiniteError, StoppedError
from dps.server.window import (
    FINISHED,
    NOTES_WIDTH,
    REDUCTION_WIDTH,
    Field,
    Operation,
    Wait,
    Window,
    Word,
    immediate,
)

__all__ = [
    "account",
    "await_closed",
    "beat",
    "broadcast",
    "check_fence",
    "claim",
    "close_epoch",
    "count_push",
    "deliver",
    "exchange",
    "finish",
    "latest_record",
    "mean",
    "meet",
    "pull",
    "reduce",
    "report",
    "snapshot_epoch",
]

_REPORTED = (Word.REPORTED_EVEN, Word.REPORTED_ODD)


@immediate
def claim(window: Window, rank: int, fence: int) -> None:
    """Take a rank for this attempt; each rank is taken once in a fit.

    Raises
    ------
    FencedError
        The rank has been taken: Dask ran the replica's task again.
    """
    if not window.words.rank_claim(rank, Field.CLAIM, fence):
        raise FencedError(
            f"replica of fit {window.spec.fit} was started twice; the second one is refused",
            rank=rank,
        )


def check_fence(window: Window, rank: int, fence: int) -> None:
    """Refuse a message of an attempt that does not own the rank."""
    owner = window.words.rank_load(rank, Field.CLAIM)
    if owner != fence:
        raise FencedError(
            f"message of attempt {fence:x} refused, attempt {owner:x} owns the rank", rank=rank
        )


@immediate
def beat(window: Window, rank: int) -> None:
    """Say that the rank is alive while it reads or encodes.

    Raises
    ------
    StoppedError
        The fit was stopped.
    """
    if window.stopped:
        raise StoppedError("the fit was stopped", rank=rank)
    window.words.rank_add(rank, Field.BEAT, 1)


@immediate
def account(window: Window, rank: int, row: NDArray[np.int64]) -> None:
    """Take in what a far rank says of itself; what comes before EPOCH is counted here."""
    window.activity[rank, EPOCH:] = row[EPOCH:]


def count_push(window: Window, rank: int, nbytes: int) -> None:
    """Count a gradient that has come from a rank."""
    window.activity[rank, PUSHES] += 1
    window.activity[rank, BYTES] += nbytes


@immediate
def pull(window: Window, rank: int) -> Any:
    """The parameters as they are, and the version they had before the copy."""
    version = window.words.load(Word.VERSION)
    return window.params.copy(), version


def meet(
    window: Window,
    rank: int,
    sequence: int,
    rows: int,
    fill: Callable[[], None],
    work: Callable[[NDArray[np.int64]], None],
) -> Operation:
    """Bring all ranks' gradients together; each rank works on its slice.

    Two barriers a step. A rank fills its slot, then ARRIVED. When all have arrived it
    calls ``work(rows)`` with the rows behind each slot, which sums its slice of all slots in
    rank order and uses the mean, then DONE. When all are done every slice has been used.
    Nobody writes a slot before DONE of all, nor uses a slice before ARRIVED of all.

    A crash before ARRIVED, or between ARRIVED and DONE, leaves the others waiting at
    their barrier until the fit is stopped; what `work` wrote by then is half a step,
    and only the snapshot of the last closed epoch counts. A message that comes twice
    finds ARRIVED or DONE at its sequence number and changes nothing.

    Raises
    ------
    NonFiniteError
        The gradient holds NaN or infinity; it has not arrived.
    """
    words = window.words
    if words.rank_load(rank, Field.ARRIVED) < sequence:
        fill()
        words.rank_store(rank, Field.ROWS, rows)
        words.rank_store(rank, Field.ARRIVED, sequence)
    yield Wait(Field.ARRIVED, sequence)
    if words.rank_load(rank, Field.DONE) < sequence:
        work(window.rows())
        words.rank_store(rank, Field.DONE, sequence)
    yield Wait(Field.DONE, sequence)


def exchange(
    window: Window,
    rank: int,
    sequence: int,
    gradient: NDArray[np.floating],
    rows: int,
    use: Callable[[NDArray[np.floating], int, int], None],
) -> Operation:
    """:func:`meet` with whole vectors: each rank calls ``use(mean, start, stop)`` on its slice."""

    def fill() -> None:
        deliver(window, rank, sequence, gradient, window.slot(rank))

    def work(counts: NDArray[np.int64]) -> None:
        start, stop = window.slice(rank)
        mean = window.scratch(rank, stop - start)
        mean_of_slots(window.slots, counts, start, stop, mean, int(counts.sum()))
        use(mean, start, stop)

    yield from meet(window, rank, sequence, rows, fill, work)


def mean(
    window: Window,
    rank: int,
    sequence: int,
    values: NDArray[np.floating],
    rows: int,
    notes: Sequence[float],
) -> Operation:
    """The sum of all ranks' values over the sum of their rows, and the sums of their notes.

    All in rank order. The mean stays in the window until every rank has arrived with what comes
    next. Two sets of places for notes are enough: a rank writes those of k + 2 only after
    DONE of all at k + 1, and nobody has arrived there who had not read those of k.
    """
    place = _notes(window, sequence, notes)
    if window.words.rank_load(rank, Field.ARRIVED) < sequence:
        place[rank] = notes

    def use(part: NDArray[np.floating], start: int, stop: int) -> None:
        window.total[start:stop] = part

    yield from exchange(window, rank, sequence, values, rows, use)
    return window.total, _rank_sum(place)


def broadcast(
    window: Window,
    rank: int,
    sequence: int,
    values: NDArray[np.floating] | None,
    notes: Sequence[float],
) -> Operation:
    """The values and notes of rank 0, for all; they stay as those of :func:`mean` do.

    The others have nothing to do, so they are DONE as soon as they have ARRIVED, which says that
    they have read what stood there before. Rank 0 waits for that, writes, and then is DONE: for
    the others it is one barrier. A crash of rank 0 in between leaves them waiting.

    Raises
    ------
    NonFiniteError
        Rank 0's values hold NaN or infinity; it is not done.
    """
    words, place = window.words, _notes(window, sequence, notes)
    if words.rank_load(rank, Field.ARRIVED) < sequence:
        words.rank_store(rank, Field.ARRIVED, sequence)
    if rank == 0:
        yield Wait(Field.ARRIVED, sequence)
    if words.rank_load(rank, Field.DONE) < sequence:
        if rank == 0:
            given = np.require(values, window.spec.dtype, ["C", "A"])
            if not copy_finite(given, window.total):
                raise NonFiniteError.of("update", rank=rank, step=sequence)
            place[0] = notes
        words.rank_store(rank, Field.DONE, sequence)
    yield Wait(Field.DONE, sequence)
    return window.total, place[0].copy()


def _notes(window: Window, sequence: int, notes: Sequence[float]) -> NDArray[np.float64]:
    """Where the ranks' notes are: (n_ranks, len(notes))."""
    if len(notes) > NOTES_WIDTH:
        raise ValueError(f"there are {NOTES_WIDTH} notes at most, got {len(notes)}")
    return window.notes[sequence % 2, :, : len(notes)]


def deliver(
    window: Window,
    rank: int,
    sequence: int,
    gradient: NDArray[np.floating],
    target: NDArray[np.floating],
) -> None:
    """Copy a gradient that came from a replica, if it is finite.

    Raises
    ------
    NonFiniteError
    """
    if np.may_share_memory(gradient, target):  # the gateway has read it to its place
        finite = all_finite(target)
    else:  # what crossed a network may be unaligned
        finite = copy_finite(np.require(gradient, window.spec.dtype, ["C", "A"]), target)
    if not finite:
        raise NonFiniteError.of(
            "gradient",
            rank=rank,
            step=sequence,
        )
    count_push(window, rank, target.nbytes)


def reduce(window: Window, rank: int, number: int, values: Sequence[float]) -> Operation:
    """Sum a few doubles over ranks, in rank order: the same bits for all.

    `number` counts reductions from 1. Two sets of places are enough: a rank writes
    its place of reduction k + 2 only after all have contributed to k + 1, and so
    have read k.
    """
    place = window.reductions[number % 2]
    if window.words.rank_load(rank, Field.REDUCED) < number:
        if len(values) > REDUCTION_WIDTH:
            raise ValueError(f"reduce takes {REDUCTION_WIDTH} values at most, got {len(values)}")
        place[rank, : len(values)] = values
        window.words.rank_store(rank, Field.REDUCED, number)
    yield Wait(Field.REDUCED, number)
    return _rank_sum(place[:, : len(values)])


def _rank_sum(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    total: NDArray[np.float64] = rows[0].copy()
    for row in rows[1:]:
        total += row
    return total


@immediate
def report(window: Window, rank: int, epoch: int, values: Sequence[float]) -> Any:
    """Report a rank's part of an epoch.

    Returns
    -------
    (n_ranks, RECORD_WIDTH) float64 array or None
        All reports if this one was the last: the caller must then close the epoch.
    """
    parity = epoch % 2
    reports = window.reports[parity]
    reports[rank, : len(values)] = values
    window.words.rank_store(rank, Field.ENDED, epoch + 1)
    received = window.words.add(_REPORTED[parity], 1)
    if received == window.spec.n_ranks * (epoch // 2 + 1):
        return reports.copy()
    return None


@immediate
def snapshot_epoch(
    window: Window,
    rank: int,
    epoch: int,
    values: NDArray[np.floating] | None = None,
    version: int | None = None,
) -> None:
    """Keep the shard as it is at the end of an epoch.

    Called by the closer alone while nobody pushes. `values`, (1 + state_rows, n), is
    given where the replicas hold the parameters.
    """
    place = epoch % 2
    tag = window.snapshot_tags[place]
    tag[0] = 0  # a crash while copying leaves no tag
    target = window.snapshots[place]
    if values is None:
        target[0] = window.params
        target[1:] = window.state
    else:
        target[:] = values
    tag[1] = window.words.load(Word.VERSION) if version is None else version
    tag[0] = epoch + 1


@immediate
def close_epoch(window: Window, rank: int, epoch: int, record: Sequence[float]) -> None:
    """Publish an epoch's record. The snapshots must have been taken."""
    row = window.history[epoch % window.spec.history]
    row[:] = 0.0
    row[: len(record)] = record
    window.words.store(Word.CLOSED, epoch + 1)


def await_closed(window: Window, rank: int, epochs: int) -> Operation:
    """Wait until so many epochs are closed; the last record, or None before any."""
    yield Wait(Word.CLOSED, epochs)
    return _last(window)


@immediate
def latest_record(window: Window, rank: int) -> Any:
    """The record of the last closed epoch, or None."""
    return _last(window)


def _last(window: Window) -> NDArray[np.float64] | None:
    closed = window.words.load(Word.CLOSED)
    if closed == 0:
        return None
    record: NDArray[np.float64] = window.history[(closed - 1) % window.spec.history]
    return record.copy()


@immediate
def finish(window: Window, rank: int) -> None:
    """No epoch follows: replicas that are ahead may go home."""
    window.stop(FINISHED)
