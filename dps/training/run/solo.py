"""A fit by passes over rows in this process, with one replica, in the caller's thread.

Nothing can be waited for or lost, so there is no shard, no thread and no deadline. The replica's
code and its bits are the same as in other fits.

After an error or Ctrl-C the result is the state of the last closed epoch. Ctrl-C may come at any
point, so one assignment stores the number of closed epochs and the snapshot together.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dps._runtime.shared.activity import WIDTH, Activity
from dps._runtime.step import SoloStep
from dps.cluster.base import Cluster
from dps.data.collections.partitions import Partition
from dps.errors import DPSError, StoppedError
from dps.server.store.snapshots import Snapshot
from dps.training.epochs.records import EpochRecord
from dps.training.job import FitResult
from dps.training.replica.activity import RankActivity
from dps.training.replica.channel import Channel, ChannelSpec, Decide
from dps.training.replica.replica import located, read_and_train
from dps.training.replica.user_errors import with_place
from dps.training.run.launch import Launch

_log = logging.getLogger("dps")

_TICK = 0.25  # seconds between calls of `on_epochs`


def solo_rows(launch: Launch, cluster: Cluster) -> list[Partition] | None:
    """Return the replica's partitions if the fit needs nothing else, otherwise None.

    A model or a score in Python may never return. A replica's thread can be given up, the caller's
    cannot.
    """
    job, ranks = launch.job, launch.plan.ranks
    plain = job.mode.access == "auto" and job.execution.n_shards == "auto"
    native = job.model.kernel is not None and job.stopping.score is None
    more = job.execution.checkpoint is not None or job.done or job.stopping.validate
    if job.full_batch is None or len(ranks) > 1 or more or not (plain and native):
        return None
    return cluster.local([piece.partition for piece in ranks[0].pieces])


class SoloFit:
    """A fit with one replica, which runs here."""

    def __init__(self, launch: Launch, partitions: Sequence[Partition], cut_rows: int) -> None:
        self._launch, self._partitions = launch, partitions
        (self._spec,) = launch.ranks(cut_rows)
        self._history: list[EpochRecord] = []
        # The number of closed epochs, and the state after them.
        self._kept: tuple[int, Snapshot | None] = 0, None
        # Epochs that `on_epochs` knows; and whether it runs, since its errors are no replica's.
        self._said, self._saying = 0, False
        self._due = time.monotonic() + _TICK

    def run(self, ending: Callable[[], None]) -> FitResult:
        """Train to the end; return the result, also of a fit that an error cut short."""
        spec, job = self._spec, self._launch.job
        channel = SoloChannel(spec.channel, job.position.kept, self._close)
        failure: BaseException | None = None
        try:
            read_and_train(spec, channel, self._partitions)
            self._say()
            ending()
        except StoppedError:
            pass
        except DPSError as error:
            failure = located(error, spec, channel)
        except BaseException as error:
            failure = error
            if not (self._saying or isinstance(error, KeyboardInterrupt)):
                with_place(error, located(DPSError(""), spec, channel))
        ending()  # after an error; a second call does nothing
        epochs, kept = self._kept
        if kept is None:
            assert failure is not None
            raise failure
        plan = replace(self._launch.plan, shards=(), sharding="")
        return FitResult.of(
            job, kept, self._history[:epochs], plan,
            activity=[RankActivity.of(0, spec.worker, channel.activity.rows)], error=failure,
        )  # fmt: skip

    def _close(self, record: EpochRecord, keep: NDArray[np.floating]) -> None:
        self._history.append(record)
        version = self._launch.job.position.version
        self._kept = record.epoch, Snapshot(keep.copy(), version, _NO_IDS)
        _log.info("%s", record.line())
        if time.monotonic() >= self._due:
            self._say()

    def _say(self) -> None:
        """Call `on_epochs` with the epochs since the last call.

        Raises StoppedError: it asks for the end of the fit.
        """
        job, records = self._launch.job, self._history[self._said :]
        if job.on_epochs is None or not records:
            return
        self._said, self._saying = len(self._history), True
        ends = job.on_epochs(records, self._reported)
        self._saying, self._due = False, time.monotonic() + _TICK
        if ends:
            raise StoppedError("a callback asks for the end of the fit")

    def _reported(self) -> Snapshot | None:
        _, kept = self._kept
        return kept and self._launch.job.reported(kept)


_NO_IDS = np.zeros((2, 0), np.int64)


class SoloChannel(Channel):
    """The channel of a replica without shards.

    start: the state that training starts from.
    closed: called with the record of each closed epoch, and the parameters and state after it.
    """

    def __init__(
        self,
        spec: ChannelSpec,
        start: Snapshot,
        closed: Callable[[EpochRecord, NDArray[np.floating]], None],
    ) -> None:
        self._spec, self._closed = spec, closed
        self.params = np.ascontiguousarray(start.params)
        self._total = np.empty_like(self.params)
        self.activity = Activity([np.zeros(WIDTH, np.int64)], spec.timed)
        self.step = SoloStep(self.params, self._total, start.version, self.activity)
        self._aligned = True
        self._record: NDArray[np.float64] | None = None

    def pull(self) -> NDArray[np.floating]:
        """The parameters that training starts from."""
        return self.params

    def beat(self) -> None:
        """Do nothing: no rank waits. Python hears Ctrl-C here."""

    def reduce(self, values: Sequence[float]) -> NDArray[np.float64]:
        """Return the values, which are their own sum."""
        return np.array(values, np.float64)

    def end_epoch(
        self,
        epoch: int,
        report: NDArray[np.float64],
        decide: Decide,
        keep: NDArray[np.floating] | None = None,
    ) -> NDArray[np.float64] | None:
        """Close an epoch; return its record."""
        assert keep is not None
        record, _, _ = decide(self._record, report[None])
        self._record = np.array(record, np.float64)
        self._closed(EpochRecord.from_row(self._record), keep)
        return self._record
