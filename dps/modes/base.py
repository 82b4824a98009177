"""What a mode is: who waits for whom, and how a replica's channel does it.

A mode is a frozen description that travels; its channel is a rank's live end of it.
Modes know windows and links, and neither models nor data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from dps._kernels.activity import Activity
from dps._kernels.keyed_push import KeyedPush
from dps._kernels.meeting import Meeting
from dps._kernels.push import Push
from dps._native import written_in_python
from dps.modes.meetings import ByKernel, ByLinks, Made, Meetings
from dps.optimizers.schedules import Schedule
from dps.optimizers.update import Update
from dps.server import operations
from dps.server.keyed import Keys
from dps.server.links import ACCESSES, Link, MappedLink
from dps.server.placement import PLACEMENTS, Placement
from dps.server.window import Field, Wait, Word

__all__ = ["Channel", "ChannelSpec", "Decide", "Mode"]

AnyPush = TypeVar("AnyPush", bound=Push)

_NOTHING: Keys = np.empty(0, np.int32)

#: What a push by keys without the interpreter does instead, and meetings without it.
_KEYED_VERBS = ("pull_keys", "push_keys")
_MEETING_VERBS = ("mean", "broadcast")

#: What a push without the interpreter touches in a window.
_REGIONS = ("params", "state", "slots", "total")
_PLACES = {
    "stop": int(Word.STOP),
    "version": int(Word.VERSION),
    "open": int(Word.OPEN),
    "arrived": int(Field.ARRIVED),
    "done": int(Field.DONE),
    "free": int(Field.FREE),
    "rows": int(Field.ROWS),
    "settled_epochs": int(Word.SETTLED_EPOCHS),
    "settled_version": int(Word.SETTLED_VERSION),
}

#: From the last closed record (or None) and all ranks' reports of an epoch, the new
#: record and whether it is the last.
Decide = Callable[[NDArray[np.float64] | None, NDArray[np.float64]], tuple[Sequence[float], bool]]


@dataclass(frozen=True)
class ChannelSpec:
    """What a channel needs to know besides its links.

    Parameters
    ----------
    rank, n_ranks : int
    placement : Placement
    size : int
        Elements of the flat parameter vector.
    dtype : str
    schedule : Schedule
        Learning rate as a function of epochs done.
    update : Update
        How a gradient is applied to the whole vector, for replicas that hold it.
    timed : bool
        Whether the rank keeps account of its time.
    """

    rank: int
    n_ranks: int
    placement: Placement
    size: int
    dtype: str
    schedule: Schedule
    update: Update
    timed: bool = True


@dataclass(frozen=True)
class Mode(ABC):
    """Base of the modes.

    Parameters
    ----------
    placement : {"contiguous", "balanced", "round_robin"}, default="contiguous"
        How tensors are placed on shards.
    access : {"auto", "mapped", "gateway"}, default="auto"
        Whether replicas map the shards' windows where they can, must, or must not.
    """

    placement: str = "contiguous"
    access: str = "auto"

    #: The name it is registered under.
    name: ClassVar[str]
    #: Whether the same plan gives the same bits with several replicas.
    deterministic: ClassVar[bool]
    #: Whether replicas wait for each other at every step.
    together: ClassVar[bool] = True
    #: Whether the shards hold the parameters, rather than every replica.
    shards_hold_parameters: ClassVar[bool] = True
    #: Whether its channel takes sparse gradients, by :meth:`Channel.push_keys`.
    keyed: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if written_in_python(cls, "channel", "keyed"):
            cls.keyed = False  # another channel says for itself what it takes

    def __post_init__(self) -> None:
        for option, choices in (("placement", sorted(PLACEMENTS)), ("access", list(ACCESSES))):
            value = getattr(self, option)
            if value not in choices:
                raise ValueError(
                    f"The {option!r} parameter of {type(self).__name__} must be a str among "
                    f"{choices}. Got {value!r} instead."
                )

    def get_params(self) -> dict[str, Any]:
        """The mode's options by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @abstractmethod
    def steps(self, rows: Sequence[int], batch_size: int) -> tuple[int, ...]:
        """Steps an epoch of each rank, so that an update takes `batch_size` rows.

        Parameters
        ----------
        rows : sequence of int
            Training rows of each rank.
        batch_size : int
            Rows of one update.
        """

    def updates(self, steps: Sequence[int]) -> int:
        """Updates of an epoch, given each rank's steps."""
        return max(steps)

    @abstractmethod
    def channel(self, spec: ChannelSpec, links: list[Link]) -> Channel:
        """A rank's channel over its links."""


class Channel(ABC):
    """A rank's way to the parameters.

    Parameters
    ----------
    spec : ChannelSpec
    links : list of Link
        One a shard, in order; the first shard keeps the epochs.

    Attributes
    ----------
    activity : Activity
        The rank's account of what it does.
    """

    _meets_in_python: ClassVar[bool] = False

    def __init__(self, spec: ChannelSpec, links: list[Link]) -> None:
        self._spec = spec
        self._links = links
        self._ledger = links[0]
        self.activity = Activity([link.counts for link in links], spec.timed)
        for shard, link in enumerate(links):
            link.attach(self.activity, shard)
        self._sequence = 0
        self._reductions = 0
        self._meetings: Meetings | None = None
        self._known: dict[int, Keys] = {}  # keys that each shard was told last

    @abstractmethod
    def pull(self) -> NDArray[np.floating]:
        """The parameters, (n,). Valid, and not to be written, until the next call."""

    @abstractmethod
    def push_pull(
        self, grad: NDArray[np.floating], rows: int, epochs_done: float
    ) -> NDArray[np.floating]:
        """Hand over a gradient sum over `rows` rows; the parameters that follow.

        Parameters
        ----------
        grad : (n,) array
        rows : int
            Rows behind it, possibly none.
        epochs_done : float
            Where the learning rate schedule stands.

        Raises
        ------
        NonFiniteError
            The gradient or the update is not finite.
        StoppedError
            The fit has been stopped or has finished.
        """

    def pull_keys(self, keys: Keys, epoch: int, step: int) -> NDArray[np.floating]:
        """The parameters that a batch will touch, (len(keys),).

        Parameters
        ----------
        keys : (m,) int32 array
            Distinct elements of the flat vector.
        epoch : int
            Of the fit, from 0.
        step : int
            Steps done in it.
        """
        raise NotImplementedError

    def push_keys(
        self, values: NDArray[np.floating], keys: Keys, rows: int, epoch: int, step: int
    ) -> None:
        """Hand over a gradient sum that is zero but for `keys`, as step `step` (from 1).

        Raises
        ------
        NonFiniteError, StoppedError
        """
        raise NotImplementedError

    def _told(self, keys: Keys) -> list[tuple[Any, Keys | None]]:
        """For each shard where its elements are in `keys`; its keys unless it knows them."""
        told: list[tuple[Any, Keys | None]] = []
        for shard, (at, local) in enumerate(self._spec.placement.split(keys)):
            known = np.array_equal(self._known.get(shard, _NOTHING), local)
            self._known[shard] = local
            told.append((at, None if known else local))
        return told

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if written_in_python(cls, "push_pull", "native"):
            cls.native = Channel.native  # type: ignore[method-assign]
        if any(written_in_python(cls, verb, "native_keyed") for verb in _KEYED_VERBS):
            cls.native_keyed = Channel.native_keyed  # type: ignore[method-assign]
        cls._meets_in_python = any(
            written_in_python(cls, verb, "native_meetings") for verb in _MEETING_VERBS
        )

    def native(self) -> Push | None:
        """:meth:`push_pull` for loops without the interpreter, after :meth:`pull`.

        None where a window is not mapped, or the optimizer has no kernel. The
        channel must :meth:`follow` what was pushed that way before it is used again.
        """
        return None

    def native_keyed(self) -> KeyedPush | None:
        """:meth:`pull_keys` and :meth:`push_keys` for loops without the interpreter.

        None where there is more than one shard, or it is not mapped.
        """
        return None

    def follow(self, push: Push) -> None:
        """Be where a push of :meth:`native` has got to."""
        self._sequence = push.sequence

    def _keyed_push(self, kind: type[KeyedPush], version: int, **more: Any) -> KeyedPush | None:
        window = self._links[0].window
        if len(self._links) > 1 or window is None:
            return None
        params = np.zeros(self._spec.size, self._spec.dtype)
        lazy = (window.update or self._spec.update).lazily(self._spec.dtype)
        regions = {"since": window.since, "keys": window.keys, "key_counts": window.key_counts}
        return self._push(
            kind, params, version, lazy=lazy, width=window.slice_width, **{**regions, **more}
        )

    def _push(
        self, kind: type[AnyPush], params: NDArray[np.floating], version: int, **more: Any
    ) -> AnyPush | None:
        links = [link for link in self._links if isinstance(link, MappedLink)]
        if len(links) < len(self._links) or self._spec.update.optimizer.native is None:
            return None
        shards = [
            {
                "header": link.window.words,
                "size": link.window.spec.size,
                "ranges": self._spec.placement.ranges[shard],
                "slice": link.window.slice(self._spec.rank),
                "update": (link.window.update or self._spec.update).for_kernels(),
                **{name: getattr(link.window, name) for name in _REGIONS},
            }
            for shard, link in enumerate(links)
        ]

        def until(shard: int, field: int, word: int, value: int) -> None:
            links[shard].until(Wait(Word(word) if field < 0 else Field(field), value))

        return kind(
            self._spec.rank,
            params,
            shards,
            _PLACES,
            self._sequence,
            version,
            links[0].tick,
            until,
            self.activity,
            **more,
        )

    def reduce(self, values: Sequence[float]) -> NDArray[np.float64]:
        """Sum a few doubles over ranks, in rank order: the same bits for all."""
        self._reductions += 1
        total: NDArray[np.float64] = self._ledger.run(
            operations.reduce, self._reductions, list(values)
        )
        return total

    def mean(self, values: NDArray[np.floating], rows: int, notes: Sequence[float] = ()) -> Made:
        """``sum_r values_r / sum_r rows_r``, in rank order: the same bits for all.

        All ranks call it, equally often, once they have settled; no push follows.

        Parameters
        ----------
        values : (n,) array
            As long as the parameters, and of their dtype.
        rows : int
            Of all ranks, at least one has some.
        notes : sequence of float
            A few doubles to be summed by the way.

        Returns
        -------
        (n,) array
            The mean. Valid, and not to be written, until the next call of this or of
            :meth:`broadcast`.
        float64 array
            The sums of the notes.

        Raises
        ------
        NonFiniteError
            The values hold NaN or infinity.
        """
        meetings = self._meet()
        return meetings.mean(self._sequence, values, rows, notes)

    def broadcast(self, values: NDArray[np.floating], notes: Sequence[float]) -> Made:
        """Rank 0's values and notes, for all ranks.

        They call it as often as each other, as they do :meth:`mean`.

        Parameters
        ----------
        values : (n,) array
            Of rank 0, in the parameters' dtype; those of others are not looked at.
        notes : sequence of float
            A few doubles, as many on all ranks.

        Returns
        -------
        (n,) array
            Valid, and not to be written, until the next call of this or of :meth:`mean`.
        float64 array
            The notes.

        Raises
        ------
        NonFiniteError
            Rank 0's values hold NaN or infinity; raised there.
        """
        meetings = self._meet()
        return meetings.broadcast(self._sequence, values, notes)

    def native_meetings(self) -> Meeting | None:
        """:meth:`mean` and :meth:`broadcast` for loops without the interpreter.

        None where a window is not mapped. All ranks call it, or none; the channel must be told
        that they :meth:`met` before it is used again.
        """
        return None if self._meets_in_python else self._ways().kernel

    def met(self, meetings: Meeting) -> None:
        """Be where meetings of :meth:`native_meetings` have got to."""
        self._sequence = meetings.sequence

    def _meet(self) -> Meetings:
        """Number the next meeting; how to take part in it."""
        meetings = self._ways()
        self._sequence += 1
        return meetings

    def _ways(self) -> Meetings:
        """How to take part in meetings."""
        if self._meetings is None:
            # Ranks may have pushed unequally often: no number may come twice.
            self._sequence = int(self.reduce([self._sequence])[0])
            self._meetings = self._ways_to_meet()
        return self._meetings

    def _ways_to_meet(self) -> Meetings:
        rank, window = self._spec.rank, self._links[0].window
        total = np.empty(self._spec.size, self._spec.dtype)
        if window is not None:
            made = window.total if len(self._links) == 1 else total
            kernel = self._push(Meeting, made, 0, notes=window.notes)
            if kernel is not None:
                return ByKernel(rank, kernel, made)
        return ByLinks(rank, self._spec.placement, self._links, total)

    def beat(self) -> None:
        """Say that this rank is alive while it reads."""
        self._ledger.run(operations.beat)

    @property
    def steps(self) -> int:
        """Gradients handed over so far."""
        return self._sequence

    def staleness(self) -> tuple[float, float]:
        """Sum and largest of the staleness of pushes since the last call."""
        return 0.0, 0.0

    def settle(self, epoch: int) -> NDArray[np.floating]:
        """The parameters at the end of an epoch, the same for all ranks.

        Nothing is applied between this and :meth:`end_epoch` of the same epoch.
        """
        return self.pull()

    def end_epoch(
        self,
        epoch: int,
        report: Sequence[float],
        decide: Decide,
        keep: NDArray[np.floating] | None = None,
    ) -> NDArray[np.float64] | None:
        """Report this rank's part of an epoch; the last rank closes it.

        Parameters
        ----------
        epoch : int
        report : sequence of float
        decide : callable
            Makes the epoch's record of all reports, and says whether it is the last.
        keep : (1 + state_rows, n) array, optional
            Parameters and state to keep as the epoch's snapshot, the same on all ranks,
            after epochs in which nothing was pushed. All ranks wait for the close.

        Returns
        -------
        array or None
            The record of the last closed epoch, once `epoch` (or the one before it,
            in a mode where nobody waits) is closed.
        """
        reports = self._ledger.run(operations.report, epoch, list(report))
        if reports is not None:
            previous = self._ledger.run(operations.latest_record)
            record, last = decide(previous, reports)
            if keep is None:
                self._snapshot(epoch)
            else:
                for shard, link in enumerate(self._links):
                    values = self._spec.placement.take(shard, keep)
                    link.run(operations.snapshot_epoch, epoch, values)
            self._ledger.run(operations.close_epoch, epoch, list(record))
            if last:
                for link in self._links:
                    link.run(operations.finish)
        return self._await(epoch) if keep is None else self._closed(epoch)

    def _await(self, epoch: int) -> NDArray[np.float64] | None:
        return self._closed(epoch)

    def _closed(self, epoch: int) -> NDArray[np.float64] | None:
        record: NDArray[np.float64] | None = self._ledger.run(operations.await_closed, epoch + 1)
        return record

    def _snapshot(self, epoch: int) -> None:
        for link in self._links:
            link.run(operations.snapshot_epoch, epoch)

    def account(self) -> None:
        """Have what the rank has counted stand in the windows, before it goes."""
        for link in self._links:
            link.account()

    def abort(self) -> None:
        """Stop the fit for all, because of an error here."""
        for link in self._links:
            link.abort()
