"""Operations of ranks in a window besides steps: claim, reduce, report, close, snapshot.

Each is a function of a rank's access to a window and waits where necessary. A rank that has mapped
the window calls it; for a remote rank a thread at the shard does.

Protocol of an epoch's end. A rank writes its report, then ENDED, then adds itself to REPORTED of
the epoch's parity. The rank that completes the count is the closer. The closer takes the snapshots,
writes the record, then CLOSED. A rank reports epoch e + 2 only after e is closed, so two sets of
reports, for even and odd epochs, suffice. A crash before ENDED leaves the epoch open and the last
snapshot intact. So does a crash of the closer before CLOSED: record and snapshot count only once
CLOSED says so, and the earlier snapshot is in another slot (``store.py``).

Within an epoch, if all ranks take the same steps, all pause after the same step, write a note each,
and reduce. Then nothing is in progress, and no step ends without rank 0, which takes the snapshots
and publishes them with the notes before its next step; the others need not wait. A crash before
INTERIM is incremented leaves the earlier snapshot, which is also in another slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps._runtime.channel.mapped import MappedChannel
from dps.errors import FencedError, NonFiniteError, StoppedError
from dps.server.group.deadlines import Watch
from dps.server.group.window import (
    FINISHED,
    INTERIM_WIDTH,
    REDUCTION_WIDTH,
    Field,
    Wait,
    Window,
    Word,
)
from dps.server.memory.lease import LEFT

_REPORTED = (Word.REPORTED_EVEN, Word.REPORTED_ODD)


@dataclass(frozen=True)
class Access:
    """A rank's access to a window, wherever its operations run."""

    window: Window
    rank: int
    watch: Watch  # deadlines of its waits
    channel: MappedChannel | None = None  # the channel of its steps


def claim(access: Access, fence: int) -> None:
    """Claim a rank for this attempt; each rank can be claimed once per fit.

    Raises FencedError: the rank is claimed already, because Dask ran the replica's task again.
    """
    if not access.window.words.rank_claim(access.rank, Field.CLAIM, fence):
        raise FencedError(
            f"replica of fit {access.window.spec.fit} was started twice; the second one is refused",
            rank=access.rank,
        )


def say_left(access: Access) -> None:
    """Record that the rank leaves in good order."""
    access.window.words.rank_store(access.rank, Field.LEASE, LEFT)


def check_fence(window: Window, rank: int, fence: int) -> None:
    """Refuse a message of an attempt that does not own the rank."""
    owner = window.words.rank_load(rank, Field.CLAIM)
    if owner != fence:
        raise FencedError(
            f"message of attempt {fence:x} refused, attempt {owner:x} owns the rank", rank=rank
        )


def beat(access: Access) -> None:
    """Send a heartbeat while the rank reads or encodes.

    Raises StoppedError: the fit was stopped.
    """
    if access.window.stopped:
        raise StoppedError("the fit was stopped", rank=access.rank)
    access.window.words.rank_add(access.rank, Field.BEAT, 1)


def version(access: Access) -> int:
    """Updates applied to the shard."""
    return access.window.store.version


def begun_at(access: Access) -> int:
    """Updates of the shard when the group began; other ranks may be working already."""
    return int(access.window.begun_at[0])


def initial(access: Access) -> tuple[NDArray[np.floating], int]:
    """The parameters and optimizer state that the fit starts from, and their version."""
    kept = [
        (whole.values.copy(), whole.version) for whole in access.window.store.snapshots.pieces(0)
    ]
    return kept[0]  # there is no table


def reported(access: Access) -> NDArray[np.floating]:
    """Parameters as the shard's optimizer reports them."""
    store = access.window.store
    assert store.update is not None
    return np.array(store.update.optimizer.result(store.params, store.state))


def reduce(access: Access, number: int, values: Sequence[float]) -> NDArray[np.float64]:
    """Sum a few doubles over the ranks in rank order; all get the same bits.

    `number` counts reductions from 1. Two sets of slots suffice: a rank writes reduction k + 2 only
    after all have contributed to k + 1, and so have read k.
    """
    window, rank = access.window, access.rank
    if len(values) > REDUCTION_WIDTH:
        raise ValueError(f"reduce takes {REDUCTION_WIDTH} values at most, got {len(values)}")
    place = window.reductions[number % 2]
    place[rank, : len(values)] = values
    window.words.rank_store(rank, Field.REDUCED, number)
    access.watch.until(Wait(Field.REDUCED, number))
    total: NDArray[np.float64] = place[0, : len(values)].copy()
    for row in place[1:]:
        total += row[: len(values)]
    return total


def report(access: Access, epoch: int, values: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Report a rank's part of an epoch.

    Returns (n_ranks, reported) float64 array or None, all reports if this one was the last: the
    caller must then close the epoch.
    """
    window, parity = access.window, epoch % 2
    reports = window.reports[parity]
    reports[access.rank, : len(values)] = values
    window.words.rank_store(access.rank, Field.ENDED, epoch + 1)
    received = window.words.add(_REPORTED[parity], 1)
    if received < window.spec.n_ranks * (epoch // 2 + 1):
        return None
    return reports.copy()


def bring_up_to_date(access: Access, epoch: int) -> None:
    """Apply pending lazy updates at the end of an epoch, while no rank pushes.

    Raises NonFiniteError: an update overflowed.
    """
    if access.channel is not None and not access.channel.flush(epoch):
        raise NonFiniteError.of("update", rank=access.rank)


def finish_steps(access: Access, clock: int) -> None:
    """Record that the rank takes no more steps in this epoch."""
    if access.channel is not None:
        access.channel.finish_steps(clock)


def snapshot_epoch(
    access: Access,
    epoch: int,
    spare: int | None = None,
    values: NDArray[np.floating] | None = None,
    version: int | None = None,
    steps: int = 0,
) -> bool:
    """Take a snapshot of the shard at the end of an epoch, or after `steps` of it.

    Only the closer or rank 0 calls it. The snapshot after `spare` epochs is not overwritten.
    Returns False if there is no room for a snapshot within an epoch.

    `values`, (1 + state_rows, n), are given if the replicas hold the parameters or no updates were
    made. Otherwise the gate is closed meanwhile: no push is running, and none begins.
    """
    store, words = access.window.store, access.window.words
    epochs = epoch if steps else epoch + 1
    if steps and not store.has_room_within():
        return False
    if values is not None:
        version = store.version if version is None else version
        store.keep(epochs, values[0], values[1:], version, spare, steps)
        return True
    words.store(Word.OPEN, 0)
    access.watch.until(Wait(Field.FREE, 1))
    bring_up_to_date(access, epoch)
    store.keep(epochs, store.params, store.state, store.version, spare, steps)
    words.store(Word.OPEN, 1)
    return True


def note(access: Access, epoch: int, values: Sequence[float]) -> None:
    """Write a rank's note about its part of an epoch into the slot of its report."""
    access.window.reports[epoch % 2, access.rank, : len(values)] = values


def publish_interim(access: Access, epoch: int, steps: int) -> None:
    """Publish a snapshot within an epoch with the notes of all ranks; rank 0 calls it.

    The snapshots must have been taken, and no rank may have reported the epoch.
    """
    window = access.window
    number = window.words.load(Word.INTERIM) + 1
    row = window.interims[number % 2]
    row[0, :2] = epoch, steps
    row[1:] = window.reports[epoch % 2, :, :INTERIM_WIDTH]
    window.words.store(Word.INTERIM, number)


def close_epoch(access: Access, epoch: int, record: Sequence[float]) -> None:
    """Publish an epoch's record, after its snapshots were taken."""
    window = access.window
    row = window.history[epoch % window.spec.history]
    row[:] = 0.0
    row[: len(record)] = record
    window.words.store(Word.CLOSED, epoch + 1)


def await_closed(access: Access, epochs: int) -> Any:
    """Wait until `epochs` epochs are closed; return the last record, or None."""
    access.watch.until(Wait(Word.CLOSED, epochs))
    return latest_record(access)


def latest_record(access: Access) -> NDArray[np.float64] | None:
    """Return the record of the last closed epoch, or None."""
    closed = access.window.words.load(Word.CLOSED)
    if closed == 0:
        return None
    record: NDArray[np.float64] = access.window.history[(closed - 1) % access.window.spec.history]
    return record.copy()


def finish(access: Access) -> None:
    """Record that no epoch follows, so that replicas that are ahead can leave."""
    access.window.stop(FINISHED)
