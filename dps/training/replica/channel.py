"""A rank's access to the shards during a fit, and how epochs end.

It uses links and the interface of modes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dps._runtime.shared.activity import Activity
from dps._runtime.step import Step
from dps.errors import DPSError, NonFiniteError, StoppedError
from dps.modes import Mode
from dps.modes.base import StepSpec
from dps.optimizers.schedules import Schedule
from dps.optimizers.update import Update
from dps.server.group import operations
from dps.server.placement import Placement
from dps.transport import HostLink, Link

#: Given the last closed record (or None) and all ranks' reports of an epoch, returns the new
#: record, whether it is the last, and the number of epochs before the snapshot that must stay.
Decide = Callable[
    [NDArray[np.float64] | None, NDArray[np.float64]], tuple[Sequence[float], bool, int | None]
]

#: How a step may end.
Ending = Literal["ran", "gradient", "update", "stopped"]
#: A vector, valid until the next mean or broadcast, and the notes that came with it.
Made = tuple[NDArray[np.floating], NDArray[np.float64]]


@dataclass(frozen=True)
class HostPlace:
    """A rank's place on its host."""

    number: int  # number of the host's window in ``Session.hosts``
    ranks: tuple[int, ...]  # the ranks on the host; the first one leads


@dataclass(frozen=True)
class ChannelSpec:
    """Options of a channel besides its links."""

    rank: int
    n_ranks: int
    placement: Placement
    size: int  # elements of the flat parameter vector
    dtype: str
    schedule: Schedule  # learning rate by epochs completed
    update: Update  # how a replica that holds the parameters applies a gradient
    timed: bool = True  # whether the rank records its time
    # The window in which ranks of the host sum gradients before one of them sends the sum.
    host: HostPlace | None = None
    # Its number among the ranks that take part in steps; -1 if another rank of its host does so for
    # it.
    place: int = 0
    epoch_steps: int = 0  # largest number of steps that a rank has in an epoch
    # Epochs of the fit before the first one of this group, which is its number 0.
    epochs_done: int = 0


class Channel:
    """A rank's access to the parameters.

    links: one per shard, in order; the first shard closes epochs.
    host: the link to the other ranks of its host.
    activity: the record of the rank's work.
    step: its steps; their parameters are in `params`, an (n,) array.
    """

    def __init__(
        self, mode: Mode, spec: ChannelSpec, links: list[Link], host: HostLink | None = None
    ) -> None:
        self._spec = spec
        self._links = links
        self._first = links[0]
        self.activity = Activity([link.counts for link in links], spec.timed)
        channels = [
            link.channel(mode.channel, shard, spec.placement.cuts[shard], self.activity)
            for shard, link in enumerate(links)
        ]
        self._host = host
        window = links[0].window if len(links) == 1 else None
        if host is not None:  # the leader writes results there, for all ranks of the host
            window = host.window
        self._total = np.empty(spec.size, spec.dtype)
        if window is not None:
            self._total = window.total if host is None else window.store.params
        held: NDArray[np.floating] | None = None
        if mode.shards_hold_parameters:
            version = int(self._first.call(operations.begun_at))
            # If ranks wait for each other, no other rank changes a shard between two steps of this
            # rank.
            shared = window is not None and mode.waits_for_all and spec.update.rates is None
            self.params = (
                window.store.params if window and shared else np.zeros(spec.size, spec.dtype)
            )
        else:
            rows = 1 + spec.update.optimizer.state_rows
            held = np.empty((rows, spec.size), spec.dtype)
            for shard, link in enumerate(links):
                values, version = link.call(operations.initial)
                spec.placement.put(shard, values, held)
            self.params = held[0]
        self._held = held
        near = None if host is None else host.channel(self.activity, self._alive)
        setup = StepSpec(
            rank=spec.rank,
            channels=channels,
            params=self.params,
            total=self._total,
            version=version,
            activity=self.activity,
            update=spec.update,
            held=held,
            host=near,
            place=spec.place,
            epoch_steps=spec.epoch_steps,
        )
        self.step: Step = mode._step(setup)
        self._reductions = 0
        self._aligned = False
        self._together = mode.together
        # True if lazy updates may be pending at the end of an epoch.
        self._lags = spec.update.rates is not None or mode.gathers

    @property
    def rank(self) -> int:
        """The rank's number."""
        return self._spec.rank

    def _alive(self) -> None:
        """Send a heartbeat to the shards while it waits for ranks of its own host."""
        self._first.call(operations.beat)
        self.heartbeat()

    def pull(self) -> NDArray[np.floating]:
        """The current parameters, (n,); read-only and valid until the next call."""
        raise_unless_ran(self.step.pull(), self._spec.rank, self.steps)
        return self.params

    def push_pull(
        self, grad: NDArray[np.floating], rows: int, epochs_done: float
    ) -> NDArray[np.floating]:
        """Push a gradient summed over `rows` rows, and return the next parameters.

        Raises NonFiniteError: the gradient or the update is not finite.
        Raises StoppedError: the fit has been stopped or has finished.
        """
        ending = self.step.push_gradient(grad, rows, self._spec.schedule(epochs_done))
        raise_unless_ran(ending, self._spec.rank, self.steps)
        return self.params

    def reduce(self, values: Sequence[float]) -> NDArray[np.float64]:
        """Sum a few doubles over the ranks in rank order; all get the same bits."""
        self._reductions += 1
        return self._call(operations.reduce, self._reductions, list(values))

    def mean(self, values: NDArray[np.floating], rows: int, notes: Sequence[float] = ()) -> Made:
        """``sum_r values_r / sum_r rows_r`` in rank order; all ranks get the same bits.

        All ranks call it equally often, with no push in progress and none to follow.

        values: (n,) array with the length and dtype of the parameters.
        rows: rows of each rank; at least one rank has some.
        notes: a few doubles that are summed as well.
        Returns (n,) array, the mean; read-only and valid until the next call of this or of
            :meth:`broadcast`.
        Returns float64 array, the sums of the notes.
        Raises NonFiniteError: the values hold NaN or infinity.
        """
        ending, sums = self.aligned().reduce_mean(values, rows, notes)
        raise_unless_ran(ending, self._spec.rank, self.steps)
        return self._total, sums

    def broadcast(self, values: NDArray[np.floating], notes: Sequence[float]) -> Made:
        """Return rank 0's values and notes on all ranks.

        All ranks call it equally often, as for :meth:`mean`.

        values: (n,) array of rank 0 in the parameters' dtype; values of other ranks are ignored.
        notes: a few doubles, equally many on all ranks.
        Returns (n,) array, read-only and valid until the next call of this or of :meth:`mean`.
        Returns float64 array, the notes.
        Raises NonFiniteError: rank 0's values hold NaN or infinity; raised on rank 0.
        """
        ending, came = self.aligned().broadcast_values(values, notes)
        raise_unless_ran(ending, self._spec.rank, self.steps)
        return self._total, came

    def aligned(self) -> Step:
        """Give the steps the same number on all ranks; all ranks call it, or none."""
        if not self._aligned:
            # Ranks may have pushed unequally often, and no number may occur twice.
            self.step.sequence = int(self.reduce([self.step.sequence])[0])
            self._aligned = True
        return self.step

    def finish_steps(self) -> None:
        """Announce that this rank takes no more steps in this epoch, so others stop waiting."""
        clock = self.step.finish_steps()
        if clock:
            for link in self._links:
                link.call(operations.finish_steps, clock)

    def beat(self) -> None:
        """Send a heartbeat while the rank reads, and learn whether the fit continues."""
        self._call(operations.beat)
        self.heartbeat()

    def heartbeat(self) -> None:
        """Send a heartbeat to every shard, and to the other ranks of its host.

        The ranks of a window judge each other by that window only.
        """
        self.step.heartbeat()

    @property
    def steps(self) -> int:
        """Gradients pushed so far."""
        return self.step.sequence

    def staleness(self) -> tuple[float, float]:
        """Sum and maximum of the staleness of pushes since the last call."""
        raise_unless_ran(self.step.wait_for_answers(), self._spec.rank, self.steps)
        return self.step.staleness()

    def clock_distance(self) -> float:
        """Largest number of steps ahead of the slowest rank since the last call.

        NaN if ranks do not count their steps.
        """
        return float(self.step.clock_distance())

    def dropped_rows(self) -> tuple[int, int]:
        """Rows that did not count, and rows that came late, since the last call."""
        return self.step.dropped_rows()

    def digest(self) -> int:
        """Digest of the rank's own copy of parameters and state; 0 if it has none."""
        return 0 if self._held is None else zlib.crc32(self._held.data)

    def flush(self, epoch: int) -> None:
        """Apply all updates of an epoch, so that all ranks see the same parameters.

        Between this call and :meth:`end_epoch` of the same epoch nothing is applied.
        """
        if not self._together:
            # A collective call of all ranks: no rank pushes again before the epoch is closed.
            self.reduce([0.0])
            if self._lags:
                if self._spec.rank == 0:
                    for link in self._links:
                        link.call(operations.bring_up_to_date, epoch)
                self.reduce([0.0])
            self._flushed = True

    def reported(self) -> NDArray[np.floating]:
        """The parameters that the optimizer reports: its current ones, or the mean in its state."""
        params = self.pull()
        optimizer = self._spec.update.optimizer
        if not optimizer.reports_a_mean:
            return params
        if self._held is not None:
            return optimizer.result(self._held[0], self._held[1:])
        whole = np.empty((1, self._spec.size), self._spec.dtype)
        for shard, link in enumerate(self._links):
            self._spec.placement.put(shard, link.call(operations.reported)[None], whole)
        return whole[0]

    _flushed = False

    def begin_epoch(self, epoch: int) -> None:
        """Announce the epoch that the rank begins."""
        self.activity.begin_epoch(self._spec.epochs_done + epoch + 1)

    def end_epoch(
        self,
        epoch: int,
        report: NDArray[np.float64],
        decide: Decide,
        keep: NDArray[np.floating] | None = None,
    ) -> NDArray[np.float64] | None:
        """Report this rank's part of an epoch; the last rank to do so closes it.

        report: (k,) float64 array.
        decide: makes the epoch's record from all reports, and says whether it is the last.
        keep: (1 + state_rows, n) array, parameters and state for the epoch's snapshot, equal on all
            ranks, for epochs without pushes. All ranks then wait for the close.
        Returns array or None, the record of the last closed epoch, once `epoch` (or in a mode
            without waiting the epoch before) is closed.
        """
        reports = self._call(operations.report, epoch, report)
        if reports is not None:
            previous = self._first.call(operations.latest_record)
            record, last, spare = decide(previous, reports)
            self._snapshot(epoch, spare, keep)
            self._first.call(operations.close_epoch, epoch, list(record))
            if last:
                for link in self._links:
                    link.call(operations.finish)
        # Without waiting, a rank is at most one epoch ahead.
        waits = self._together or self._flushed or keep is not None
        self._flushed = False
        return self._first.call(operations.await_closed, epoch + waits)

    def keep(self, epoch: int, steps: int, note: Sequence[float], spare: int | None) -> None:
        """Take a snapshot within an epoch; all ranks call it after the same step.

        It is for modes in which no step ends without rank 0, and not for steps by keys.

        steps: steps of the epoch so far.
        note: at most INTERIM_WIDTH numbers about this rank.
        spare: number of epochs before the snapshot that must stay.
        """
        self._call(operations.note, epoch, list(note))
        self.reduce([0.0])
        if self._spec.rank == 0 and self._snapshot(epoch, spare, None, steps):
            self._first.call(operations.publish_interim, epoch, steps)

    def _snapshot(
        self, epoch: int, spare: int | None, keep: NDArray[np.floating] | None, steps: int = 0
    ) -> bool:
        version, taken = None, True
        if keep is None and self._held is not None:
            keep, version = self._held, self.step.version + self.steps
        for shard, link in enumerate(self._links):
            if keep is None:
                taken &= link.call(operations.snapshot_epoch, epoch, spare, None, None, steps)
            else:
                part = self._spec.placement.take(shard, keep)
                taken &= link.call(operations.snapshot_epoch, epoch, spare, part, version, steps)
        return taken

    def _call(self, operation: Callable[..., Any], *args: Any) -> Any:
        """Call an operation at the first shard while no push is in progress."""
        raise_unless_ran(self.step.wait_for_answers(), self._spec.rank, self.steps)
        return self._first.call(operation, *args)

    def account(self) -> None:
        """Write the rank's counters to the windows before it leaves."""
        for link in self._links:
            link.account()

    def abort(self) -> None:
        """Stop the fit for all ranks because of an error here."""
        if self._host is not None:
            self._host.abort()
        for link in self._links:
            with suppress(DPSError):  # the shard is lost; the others continue
                link.abort()


def raise_unless_ran(ending: Ending, rank: int | None, step: int) -> None:
    """Raise the error that the ending of a step stands for.

    Raises NonFiniteError, StoppedError.
    """
    if ending == "stopped":
        raise StoppedError("the fit was stopped")
    if ending != "ran":
        raise NonFiniteError.of(ending, rank=rank, step=step)
