"""The interface of a place where training runs: its data, shards and replicas.

A cluster object belongs to one fit. `close` removes everything that it made.
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
    """Seconds for stopping, for releasing, and until a death is known."""
    return float(Options.now().grace)


class RankSpec(Protocol):
    """A replica to start, as a cluster sees it."""

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
    """Running replicas. By default nothing but this process can be lost."""

    @abstractmethod
    def wait(self, seconds: float) -> bool:
        """Wait until another replica has ended, or for some seconds; True if all have ended."""

    @abstractmethod
    def outcomes(self) -> dict[int, Any]:
        """Results of the replicas that have ended, by rank."""

    @abstractmethod
    def abandon(self, ranks: Iterable[int]) -> None:
        """Do not wait for these hanging replicas when the fit ends."""

    def check(self) -> None:
        """Raise if a worker or the scheduler is lost."""
        return

    def raise_if_unresponsive(self, worker: str | None) -> None:
        """Raise if a worker (None: any) is lost or does not answer."""
        return

    def to_begin(self, ranks: Iterable[int]) -> set[int]:
        """Return the replicas that have not begun; raise if their tasks make no progress."""
        return set()


@dataclass(frozen=True)
class ShardPlan:
    """A shard and its worker."""

    shard: ShardSpec
    worker: str
    rows: Snapshot | None = None  # the rows of a table that the shard starts with

    @property
    def table(self) -> TableSpec | None:
        """The shard's part of a table, or None."""
        arena = self.shard.store.arena
        return None if arena is None else arena.table

    def pieces(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.floating]]]:
        """Ids and values of its rows, in pieces."""
        if self.rows is not None and self.table is not None:
            yield from self.rows.pieces(self.table.width)


class Cluster(ABC):
    """A place to run one fit. The defaults are those of a single process."""

    #: True if events of the fit are received.
    watched: bool = False
    #: True if replicas record their time.
    timed: bool = True
    #: Why the fit runs here, if that may surprise the user.
    why: str = ""

    def __init__(self) -> None:
        #: Losses after which partitions were made again, with the seconds that this took; without
        #: the losses that `end_generation` has handled.
        self.lost: list[tuple[str, float]] = []

    def publish(self, event: Mapping[str, Any]) -> None:
        """Send an event (``monitor/events.py``) without waiting, if it can be received."""
        return

    @abstractmethod
    def threads(self) -> Mapping[str, int]:
        """Return the workers and their threads."""

    def joined(self) -> Mapping[str, int]:
        """All workers and their threads if some have joined since the fit began, else empty."""
        return {}

    @property
    def can_grow(self) -> bool:
        """True if a request for workers may be granted."""
        return False

    def wish(self, n: int) -> None:
        """Ask an adaptive cluster for `n` more workers."""
        return

    def memory(self) -> int:
        """Smallest memory limit of a worker in bytes; 0 if none is known."""
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

        `loading` is called once a second with the numbers of loaded partitions and of all.

        If ``prepare(X, number)`` is given, its result replaces X of Dask partitions. Partitions
        that are not in memory are stored as `cache` says, see :class:`Keeping`, and on at most
        `most` workers, so that no worker has to give rows away.
        """

    @property
    @abstractmethod
    def holders(self) -> list[str]:
        """The worker of each partition.

        When a worker is lost, its partitions move. Every call that works on partitions may find a
        lost worker.
        """

    @property
    @abstractmethod
    def n_trained(self) -> int:
        """Number of training partitions; local ones may have been cut."""

    @abstractmethod
    def streamed(self) -> dict[int, bool]:
        """Partitions that are not kept as they are read, with whether each is read as a whole."""

    def local(self, numbers: Sequence[int]) -> list[Partition] | None:
        """Return partitions that are in this process's memory; None if any is not."""
        return None

    @abstractmethod
    def map(
        self, function: Callable[..., Any], numbers: Sequence[int] | None = None,
        opened: bool = True, **options: Any,
    ) -> list[Any]:  # fmt: skip
        """Call ``function(X, y, weight, **options)`` on partitions, or some, on their workers.

        With ``opened=False`` the function gets what stands for a partition.
        """

    @abstractmethod
    def sum(self, function: Callable[..., Any], numbers: Sequence[int], **options: Any) -> Any:
        """Add up a function's results over partitions, first on each worker.

        The order depends on where the partitions are.
        """

    @abstractmethod
    def replace(
        self, function: Callable[[Any, int], Any], numbers: Sequence[int] | None = None
    ) -> None:
        """Replace X of partitions, or of some of them, by ``function(X, number)``."""

    @abstractmethod
    def exchange(self, split: RandomSplit, homes: Sequence[str]) -> None:
        """Move all rows to random new partitions on given workers, in place of the old ones.

        Partitions that `split` does not cover stay behind the new ones.
        """

    @abstractmethod
    def hosts(self, workers: Sequence[str]) -> list[str]:
        """Return a text for each worker; workers with the same text can map each other's memory."""

    @abstractmethod
    def serve(
        self, shards: Sequence[ShardPlan], placement: Placement, hosts: Sequence[ShardPlan] = ()
    ) -> Session:
        """Create shards, and windows for hosts whose ranks sum there, and start a group."""

    @abstractmethod
    def launch(
        self, function: Callable[..., Any], specs: Sequence[RankSpec], server: Session
    ) -> Running:
        """Start ``function(spec, server, partitions, alive, watch)`` for each rank.

        `partitions` are those of its pieces; of a piece that is moved only its rows. `alive` and
        `watch` are optional.
        """

    def read_after_death(self, session: Session) -> tuple[Session, Check | None]:
        """Return a session to read the same state; lost shards answer from memory that they left.

        Returns a check as well, which raises ServerLostError once another shard is lost.
        Raises ServerLostError: nothing is left of a shard.
        """
        return session, None

    def is_retired(self, worker: str | None) -> bool:
        """True if a lost or leaving worker was retired."""
        return False

    @abstractmethod
    def end_generation(
        self, lost: WorkerLostError | None = None, *, drop: bool = False
    ) -> set[int]:
        """End the current group, so that another one can be served and launched.

        Partitions that were lost with their workers are made again on others.

        lost: the reason, if there is no other.
        drop: whether to continue without partitions that cannot be made again.
        Returns those partitions.
        Raises WorkerLostError: there are some, and `drop` is False.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop everything and leave nothing behind; may be called at any time."""


def until_known(check: Callable[[], None]) -> None:
    """Repeat `check`, which raises once a worker's death is known, for ``dps.grace`` seconds.

    A broken connection or a free lock shows a death earlier.
    """
    deadline = time.monotonic() + grace()
    while time.monotonic() < deadline:
        check()
        time.sleep(0.05)
