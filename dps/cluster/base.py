"""The interface of a place where training runs: data, shards, replicas, and an end.

A cluster object lives for one fit. Whatever it made is gone after `close`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dps.cluster.options import Options
from dps.data.collections.partitions import Counted, Partition, Piece
from dps.data.exchange import RandomSplit
from dps.errors import WorkerLostError
from dps.models.layout import TableSpec
from dps.server.group.session import Check, Session
from dps.server.placement import Placement
from dps.server.shard import ShardSpec
from dps.server.store.snapshots import Snapshot


def grace() -> float:
    """Seconds that stopping, releasing and news of a death may take."""
    return float(Options.now().grace)


class RankSpec(Protocol):
    """A replica to start, as far as a cluster knows it."""

    @property
    def rank(self) -> int:
        """Its number."""

    @property
    def worker(self) -> str:
        """Address of the worker."""

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Its rows."""


class Running(ABC):
    """Replicas that run; where nothing but this process can be lost, unless said otherwise."""

    @abstractmethod
    def wait(self, seconds: float) -> bool:
        """Wait until a further replica has ended, or some seconds; whether all have."""

    @abstractmethod
    def outcomes(self) -> dict[int, Any]:
        """Results of the replicas that have ended, by rank."""

    @abstractmethod
    def abandon(self, ranks: Iterable[int]) -> None:
        """Do not wait for these when the fit ends: they hang."""

    def check(self) -> None:
        """Raise if a worker or the scheduler is gone."""
        return

    def raise_if_unresponsive(self, worker: str | None) -> None:
        """Raise if a worker, or any, is gone or does not answer; called after it was lost."""
        return

    def to_begin(self, ranks: Iterable[int]) -> set[int]:
        """The replicas among these that have not begun; raise if their tasks make no progress."""
        return set()


@dataclass(frozen=True)
class ShardPlan:
    """A shard, and the worker that has it."""

    shard: ShardSpec
    worker: str
    rows: Snapshot | None = None  # rows of a table that the shard begins with

    @property
    def table(self) -> TableSpec | None:
        """The table, of which the shard holds a part."""
        arena = self.shard.store.arena
        return None if arena is None else arena.table

    def pieces(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.floating]]]:
        """Ids and values of its rows, some at a time."""
        if self.rows is not None and self.table is not None:
            yield from self.rows.pieces(self.table.width)


class Cluster(ABC):
    """A place to run one fit; what only a cluster of workers has is as if there were none."""

    #: True if replicas count their time, and events are published.
    watched: bool = True
    #: Why the fit is here, where its user may wonder.
    why: str = ""

    def __init__(self) -> None:
        #: Losses after which partitions were made again, but for those that `end_generation` was
        #: given; and the seconds that took.
        self.lost: list[tuple[str, float]] = []

    def publish(self, event: Mapping[str, Any]) -> None:
        """Send an event (``monitor/events.py``) without waiting, if anything can receive it."""
        return

    @abstractmethod
    def threads(self) -> Mapping[str, int]:
        """Workers and their threads."""

    def joined(self) -> Mapping[str, int]:
        """All workers and their threads if some have joined since the fit began, else empty."""
        return {}

    @property
    def can_grow(self) -> bool:
        """True if a wish for workers may be granted."""
        return False

    def wish(self, n: int) -> None:
        """Ask an adaptive cluster for `n` more workers."""
        return

    def memory(self) -> int:
        """Bytes that a worker may use, of the worker that may use least; 0: no limit is known."""
        return 0

    @abstractmethod
    def load(
        self,
        partitions: Sequence[Partition],
        prepare: Callable[[Any, int], Any] | None = None,
        cache: str | None = "memory",
        most: int | None = None,
        validation: Sequence[Partition] = (),
        loading: Counted = lambda done, total: None,
    ) -> None:
        """Compute and keep all partitions, validation data last.

        `loading` is called once a second with the number of loaded partitions and of all.

        Of Dask's partitions ``prepare(X, number)`` is kept instead of X, if it is given.
        Those that are not in memory are kept where `cache` says, see :class:`Keeping`, and
        on `most` workers: more would have to give rows away.
        """

    @property
    @abstractmethod
    def holders(self) -> list[str]:
        """The worker of each partition.

        When a worker is lost, its partitions move to others. Any call that works on partitions may
        find a worker lost.
        """

    @property
    @abstractmethod
    def n_trained(self) -> int:
        """Partitions that are not of validation data; local ones may have been cut."""

    @abstractmethod
    def streamed(self) -> dict[int, bool]:
        """Partitions that are not kept as they are read, and whether each is read as a whole."""

    @abstractmethod
    def map(
        self, function: Callable[..., Any], numbers: Sequence[int] | None = None,
        opened: bool = True, **options: Any,
    ) -> list[Any]:  # fmt: skip
        """Call ``function(X, y, weight, **options)`` on partitions, or some, where they lie.

        Or of what stands for a partition, if it is not to be opened.
        """

    @abstractmethod
    def sum(self, function: Callable[..., Any], numbers: Sequence[int], **options: Any) -> Any:
        """Add up what a function returns of partitions, where they lie first.

        The order depends on where they lie.
        """

    @abstractmethod
    def replace(
        self, function: Callable[[Any, int], Any], numbers: Sequence[int] | None = None
    ) -> None:
        """Keep ``function(X, number)`` instead of the X of partitions, or of some of them."""

    @abstractmethod
    def exchange(self, split: RandomSplit, homes: Sequence[str]) -> None:
        """Draw all rows into new partitions, each on its worker, which replace the old ones.

        Partitions behind those that `split` knows stay behind the new ones.
        """

    @abstractmethod
    def hosts(self, workers: Sequence[str]) -> list[str]:
        """For each worker a text that those have in common that can map each other's memory."""

    @abstractmethod
    def serve(
        self, shards: Sequence[ShardPlan], placement: Placement, hosts: Sequence[ShardPlan] = ()
    ) -> Session:
        """Make shards, and windows for hosts whose ranks sum there; a group works on them."""

    @abstractmethod
    def launch(
        self, function: Callable[..., Any], specs: Sequence[RankSpec], server: Session
    ) -> Running:
        """Start ``function(spec, server, partitions, alive, watch)`` for each rank.

        `partitions` are those of its pieces, of a piece that is moved its rows only. `alive`
        and `watch` may be left out.
        """

    def read_after_death(self, session: Session) -> tuple[Session, Check | None]:
        """The same session, to be read; shards that are gone answer from what they have left.

        Returns a check as well, to be called while shards are asked: it raises ServerLostError
        once another one is gone.
        Raises ServerLostError: of one of them nothing is left.
        """
        return session, None

    def is_retired(self, worker: str | None) -> bool:
        """True if a worker that is gone, or leaves, was asked to."""
        return False

    @abstractmethod
    def end_generation(
        self, lost: WorkerLostError | None = None, *, drop: bool = False
    ) -> set[int]:
        """End the group at work, so that another one can be served and launched.

        Partitions that have gone with their workers are made again on others.

        lost: the reason, if there is no other.
        drop: whether to go on without those that cannot be.
        Returns partitions that are lost.
        Raises WorkerLostError: partitions are lost, and are not to be dropped.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop what runs and leave nothing behind. May be called at any time."""


def until_known(check: Callable[[], None]) -> None:
    """Repeat `check`, which raises once a worker's death is known, for the seconds of `dps.grace`.

    A broken connection or a lock that is free is seen earlier.
    """
    deadline = time.monotonic() + grace()
    while time.monotonic() < deadline:
        check()
        time.sleep(0.05)
