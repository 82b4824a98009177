"""A rank's live part in a fit: what it steps through, and how epochs end.

It knows links and the interface of modes.
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

#: From the last closed record (or None) and all ranks' reports of an epoch, the new record,
#: whether it is the last, and after how many epochs the snapshot was taken that is to stay.
Decide = Callable[
    [NDArray[np.float64] | None, NDArray[np.float64]], tuple[Sequence[float], bool, int | None]
]

#: Endings of a step.
Ending = Literal["ran", "gradient", "update", "stopped"]
#: A vector, which is valid until the next mean or broadcast, and the notes that go along.
Made = tuple[NDArray[np.floating], NDArray[np.float64]]


@dataclass(frozen=True)
class HostPlace:
    """A rank's place on its host."""

    number: int  # of the host's window, in ``Session.hosts``
    ranks: tuple[int, ...]  # the ranks there; the first one leads


@dataclass(frozen=True)
class ChannelSpec:
    """The options of a channel besides its links."""

    rank: int
    n_ranks: int
    placement: Placement
    size: int  # elements of the flat parameter vector
    dtype: str
    schedule: Schedule  # learning rate as a function of epochs done
    update: Update  # how a gradient is applied to the whole vector, for replicas that hold it
    timed: bool = True  # whether the rank keeps account of its time
    # The window where ranks of its host sum before one of them sends.
    host: HostPlace | None = None
    # Its number among the ranks that take part in steps; -1: another of its host does for it.
    place: int = 0
    epoch_steps: int = 0  # steps of an epoch of the rank that has most
    epochs_done: int = 0  # epochs of the fit before the group's first, which it counts from 0


class Channel:
    """A rank's way to the parameters.

    links: one a shard, in order; the first shard keeps the epochs.
    host: the way to the other ranks of its host.
    activity: the rank's account of what it does.
    step: its steps; the parameters are in `params`, of which steps read and write the elements.
    params: (n,) array.
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
        if host is not None:  # what comes of a step lies there, for all ranks of the host
            window = host.window
        self._total = np.empty(spec.size, spec.dtype)
        if window is not None:
            self._total = window.total if host is None else window.store.params
        held: NDArray[np.floating] | None = None
        if mode.shards_hold_parameters:
            version = int(self._first.call(operations.begun_at))
            # If ranks wait for each other, no other rank writes to a shard behind a rank's back.
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
        self.step: Step = mode.step(setup)
        self._reductions = 0
        self._aligned = False
        self._together = mode.together
        # True if lazy updates may remain until an epoch's end.
        self._lags = spec.update.rates is not None or mode.gathers

    @property
    def rank(self) -> int:
        """The rank's number."""
        return self._spec.rank

    def _alive(self) -> None:
        """While it waits for ranks of its own host, the shards hear of this rank."""
        self._first.call(operations.beat)
        self.heartbeat()

    def pull(self) -> NDArray[np.floating]:
        """The parameters as they are, (n,). Valid, and not to be written, until the next call."""
        raise_unless_ran(self.step.pull(), self._spec.rank, self.steps)
        return self.params

    def push_pull(
        self, grad: NDArray[np.floating], rows: int, epochs_done: float
    ) -> NDArray[np.floating]:
        """Hand over a gradient sum over `rows` rows; the parameters that follow.

        Raises NonFiniteError: the gradient or the update is not finite.
        Raises StoppedError: the fit has been stopped or has finished.
        """
        ending = self.step.push_gradient(grad, rows, self._spec.schedule(epochs_done))
        raise_unless_ran(ending, self._spec.rank, self.steps)
        return self.params

    def reduce(self, values: Sequence[float]) -> NDArray[np.float64]:
        """Sum a few doubles over ranks, in rank order: the same bits for all."""
        self._reductions += 1
        return self._call(operations.reduce, self._reductions, list(values))

    def mean(self, values: NDArray[np.floating], rows: int, notes: Sequence[float] = ()) -> Made:
        """``sum_r values_r / sum_r rows_r``, in rank order: the same bits for all.

        All ranks call it, equally often, once nothing is under way; no push follows.

        values: (n,) array, as long as the parameters, and of their dtype.
        rows: rows of each rank, of which at least one has some.
        notes: a few doubles to be summed by the way.
        Returns (n,) array, the mean. Valid, and not to be written, until the next call of this or
        of :meth:`broadcast`.
        Returns float64 array, the sums of the notes.
        Raises NonFiniteError: the values hold NaN or infinity.
        """
        ending, sums = self.aligned().reduce_mean(values, rows, notes)
        raise_unless_ran(ending, self._spec.rank, self.steps)
        return self._total, sums

    def broadcast(self, values: NDArray[np.floating], notes: Sequence[float]) -> Made:
        """Rank 0's values and notes, for all ranks.

        They call it as often as each other, as they do :meth:`mean`.

        values: (n,) array, of rank 0, in the parameters' dtype; those of others are not looked at.
        notes: a few doubles, as many on all ranks.
        Returns (n,) array, valid, and not to be written, until the next call of this or of
        :meth:`mean`.
        Returns float64 array, the notes.
        Raises NonFiniteError: rank 0's values hold NaN or infinity; raised there.
        """
        ending, came = self.aligned().broadcast_values(values, notes)
        raise_unless_ran(ending, self._spec.rank, self.steps)
        return self._total, came

    def aligned(self) -> Step:
        """The steps, numbered alike on all ranks; all ranks call it, or none."""
        if not self._aligned:
            # Ranks may have pushed unequally often: no number may come twice.
            self.step.sequence = int(self.reduce([self.step.sequence])[0])
            self._aligned = True
        return self.step

    def finish_steps(self) -> None:
        """Announce that this rank takes no more steps in this epoch; others stop waiting for it."""
        clock = self.step.finish_steps()
        if clock:
            for link in self._links:
                link.call(operations.finish_steps, clock)

    def beat(self) -> None:
        """Say that this rank is alive while it reads, and hear whether the fit goes on."""
        self._call(operations.beat)
        self.heartbeat()

    def heartbeat(self) -> None:
        """Say that this rank is alive, wherever others judge it: at every shard, and on its host.

        A window's ranks judge each other by what stands in that window alone.
        """
        self.step.heartbeat()

    @property
    def steps(self) -> int:
        """Gradients handed over so far."""
        return self.step.sequence

    def staleness(self) -> tuple[float, float]:
        """Sum and largest of the staleness of pushes since the last call."""
        raise_unless_ran(self.step.wait_for_answers(), self._spec.rank, self.steps)
        return self.step.staleness()

    def clock_distance(self) -> float:
        """Steps by which a step began ahead of the slowest rank since the last call, at most.

        NaN where ranks do not count their steps.
        """
        return float(self.step.clock_distance())

    def dropped_rows(self) -> tuple[int, int]:
        """Rows that did not count, and rows that came late, since the last call."""
        return self.step.dropped_rows()

    def digest(self) -> int:
        """Digest of the rank's own copy of parameters and state; 0 if it holds none."""
        return 0 if self._held is None else zlib.crc32(self._held.data)

    def flush(self, epoch: int) -> None:
        """Have all updates of an epoch applied, so that all ranks see the same parameters.

        Nothing is applied between this and :meth:`end_epoch` of the same epoch.
        """
        if not self._together:
            # A collective of all ranks; no rank pushes again before the epoch is closed.
            self.reduce([0.0])
            if self._lags:
                if self._spec.rank == 0:
                    for link in self._links:
                        link.call(operations.bring_up_to_date, epoch)
                self.reduce([0.0])
            self._flushed = True

    def reported(self) -> NDArray[np.floating]:
        """Parameters as the optimizer reports them: themselves, or the mean in its state."""
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
        """Say which epoch the rank is at."""
        self.activity.begin_epoch(self._spec.epochs_done + epoch + 1)

    def end_epoch(
        self,
        epoch: int,
        report: NDArray[np.float64],
        decide: Decide,
        keep: NDArray[np.floating] | None = None,
    ) -> NDArray[np.float64] | None:
        """Report this rank's part of an epoch; the last rank closes it.

        report: (k,) float64 array.
        decide: makes the epoch's record of all reports, and says whether it is the last.
        keep: (1 + state_rows, n) array, parameters and state to keep as the epoch's snapshot, the
            same on all ranks, after epochs in which nothing was pushed. All ranks wait for the
            close.
        Returns array or None, the record of the last closed epoch, once `epoch` (or the one before
        it, in a mode without waits) is closed.
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
        # Without waits, a rank runs at most one epoch ahead.
        waits = self._together or self._flushed or keep is not None
        self._flushed = False
        return self._first.call(operations.await_closed, epoch + waits)

    def keep(self, epoch: int, steps: int, note: Sequence[float], spare: int | None) -> None:
        """Have a snapshot taken within an epoch; all ranks call it after the same step.

        For modes in which no step ends without rank 0, and not where steps go by keys.

        steps: steps of it that are behind.
        note: this rank's account of them; INTERIM_WIDTH of them at the most.
        spare: after how many epochs the snapshot was taken that is to stay.
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
        """Call an operation at the first shard, once no push is under way."""
        raise_unless_ran(self.step.wait_for_answers(), self._spec.rank, self.steps)
        return self._first.call(operation, *args)

    def account(self) -> None:
        """Have what the rank has counted stand in the windows, before it goes."""
        for link in self._links:
            link.account()

    def abort(self) -> None:
        """Stop the fit for all, because of an error here."""
        if self._host is not None:
            self._host.abort()
        for link in self._links:
            with suppress(DPSError):  # it is lost; the others go on
                link.abort()


def raise_unless_ran(ending: Ending, rank: int | None, step: int) -> None:
    """Say how a step ended, unless well.

    Raises NonFiniteError, StoppedError.
    """
    if ending == "stopped":
        raise StoppedError("the fit was stopped")
    if ending != "ran":
        raise NonFiniteError.of(ending, rank=rank, step=step)
