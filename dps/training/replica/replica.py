"""A replica: the loop that every rank runs in every mode.

It uses a model and a channel, and neither Dask nor the mode behind the channel.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps._cores import one_thread_each
from dps._runtime.shared.activity import COMPUTE, LOAD, PULL, PUSH, Activity
from dps.data.collections.partitions import Partition
from dps.data.feed.batches import Batches
from dps.data.feed.cuts import Source
from dps.errors import DPSError, ReplicaError, StoppedError
from dps.server.group.session import Session
from dps.training.epochs.records import EpochRecord, EpochReport
from dps.training.lbfgs.full_batch import train_full_batch
from dps.training.replica.channel import Channel, Decide
from dps.training.replica.cuts import cuts_of, streamed
from dps.training.replica.pauses import Pauses
from dps.training.replica.spec import ReplicaSpec
from dps.training.replica.steps import FROM_THE_START, Steps
from dps.training.replica.user_errors import SentCause, described
from dps.training.replica.validation import HeldOutRows, Validation
from dps.transport import HostLink, Link, connect

_BEAT_EVERY = 1.0  # seconds, or a quarter of the timeout
_MANY_ROWS = 1 << 20  # rows whose targets take long to encode


@dataclass(frozen=True)
class Outcome:
    """How a replica has ended: its error."""

    rank: int
    error: DPSError
    # The user's exception behind a :class:`ReplicaError`; it travels by itself, see `SentCause`.
    cause: BaseException | None = None

    def __reduce__(self) -> tuple[Callable[..., Outcome], tuple[Any, ...]]:
        sent = None if self.cause is None else SentCause.of(self.cause)
        return _arrived, (self.rank, self.error, sent)


def _arrived(rank: int, error: DPSError, sent: SentCause | None) -> Outcome:
    return Outcome(rank, error, None if sent is None else sent.opened())


def run_replica(
    spec: ReplicaSpec,
    session: Session,
    partitions: Sequence[Partition],
    alive: Callable[[], None] | None = None,
    watch: Callable[[Activity], None] | None = None,
) -> Outcome | None:
    """Train to the end of the fit, or until it is stopped.

    partitions: one for each of ``spec.pieces``, computed; of a piece that was moved only its rows.
    alive: called once a second while waiting; raises to give up.
    watch: called at the beginning with the record of the replica's work. An error is returned and
        not raised: Dask would keep and repeat an exception. Without an error the result is None,
        which Dask sends to the client as the task ends.
    """
    rank = spec.rank
    channel: Channel | None = None
    host: HostLink | None = None
    links: list[Link] = []

    def waits() -> None:
        if alive is not None:
            alive()
        if channel is not None:  # a rank that waits at one shard is judged at all of them
            channel.heartbeat()

    try:
        links = connect(session, rank, spec.fence, access=spec.mode.access, alive=waits)
        if (place := spec.channel.host) is not None:
            card = session.hosts[place.number].card
            host = HostLink.of(card, rank, place.ranks, session.server.timeout)
        channel = Channel(spec.mode, spec.channel, links, host)
        if watch is not None:
            watch(channel.activity)
        # Threads do not share scratch memory of a model.
        spec = replace(spec, model=copy.deepcopy(spec.model))
        beats = _heartbeat(channel, min(_BEAT_EVERY, session.server.timeout / 4))
        read_and_train(spec, channel, partitions, beats)
        _notify(channel, lambda channel: channel.account())
    except StoppedError as error:
        _notify(channel, lambda channel: channel.account())
        return Outcome(rank, located(error, spec, channel))
    except DPSError as error:
        _notify(channel, lambda channel: channel.abort())
        return Outcome(rank, located(error, spec, channel), error.__cause__)
    except BaseException as error:  # includes a model that calls sys.exit
        _notify(channel, lambda channel: channel.abort())
        failure = ReplicaError(f"a replica failed with {described(error)}")
        return Outcome(rank, located(failure, spec, channel), error)
    finally:
        for link in (*links, host):
            if link is not None:
                link.close()
    channel = None  # a reference would keep the channel, and threads that wait on it
    return None


def read_and_train(
    spec: ReplicaSpec,
    channel: Channel,
    partitions: Sequence[Partition],
    beats: AbstractContextManager[None] | None = None,
) -> None:
    """Train on some partitions to the end of the fit.

    spec: its model is used by no other thread.
    beats: entered while many rows are read or encoded.
    """
    slow = streamed(partitions) or sum(piece.rows for piece in spec.pieces) > _MANY_ROWS
    with beats if slow and beats is not None else nullcontext():
        cuts = tuple(cuts_of(spec, partitions))
    source = Source(cuts, spec.seed if spec.shuffle else None, spec.rank, channel.beat)
    held_out = HeldOutRows(source, spec.targets, spec.stopping.score, channel.beat)
    channel.activity.lap(LOAD)
    _train(spec, channel, source, held_out)


def _train(spec: ReplicaSpec, channel: Channel, source: Source, held_out: HeldOutRows) -> None:
    """Take stochastic steps, or passes over all rows, or both in turn."""
    alone = one_thread_each if getattr(spec.model, "by_blas", False) else nullcontext
    with alone(), getattr(spec.model, "computing", nullcontext)():
        how, done = spec.full_batch, 0
        if how is None and not spec.on_plateau:
            done = _take_steps(spec, channel, source, held_out)
        how = how or spec.finish
        if how is not None and done < spec.epochs:
            train_full_batch(
                how,
                channel=channel,
                model=spec.model,
                source=source,
                state_rows=spec.channel.update.optimizer.state_rows,
                decide=partial(_decision, spec),
                first=done,
                validate=held_out.at if spec.held_out else None,
            )


def _take_steps(spec: ReplicaSpec, channel: Channel, source: Source, held_out: HeldOutRows) -> int:
    """Take stochastic steps until the fit ends or is on a plateau; return the number of epochs."""
    model = spec.model
    batches = Batches(source, spec.steps)
    steps = Steps(
        model, channel, batches, spec.channel.schedule, spec.channel.update.rates,
        seed=(spec.seed, spec.rank),
    )  # fmt: skip
    activity = channel.activity
    activity.lap(PULL)
    pauses = Pauses(channel, spec.pauses_every, spec.steps, spec.channel.n_ranks)
    last, begun = spec.previous, spec.begun
    for epoch in range(spec.epochs):
        began = time.monotonic() - begun.seconds
        channel.begin_epoch(epoch)
        until = pauses.begin(epoch, began, _spared(spec, last), begun.step)
        number = spec.epochs_before + spec.done + epoch
        loss_sum, seen, pushes = steps.epoch(number, until, pauses.pause, begun)
        begun = FROM_THE_START
        validation: Validation = (0.0, 0.0, ())
        if spec.held_out:
            channel.flush(epoch)
            if spec.channel.update.rates is None:
                validation = held_out.at(model, channel.reported())
            else:
                validation = held_out.by_keys(model, channel)
            activity.lap(COMPUTE)
        missed, weight, scores = validation
        stale_sum, stale_max = channel.staleness()
        dropped, late = channel.dropped_rows()
        report = EpochReport(
            loss_sum=loss_sum,
            rows=seen,
            validation_sum=missed,
            validation_weight=weight,
            seconds=time.monotonic() - began,
            stale_sum=stale_sum,
            stale_max=stale_max,
            steps=pushes,
            clock_distance=channel.clock_distance(),
            skipped=steps.skipped,
            dropped=dropped,
            late=late,
            digest=channel.digest(),
        )
        row = channel.end_epoch(epoch, report.row(scores), _decision(spec, epoch))
        activity.lap(PUSH)
        record = None if row is None else EpochRecord.from_row(row)
        if record is not None and record.last:
            break
        if record is not None:
            last = record
            pauses.took(record.seconds)
        # Some ranks have the record of this epoch already, and all have the one before.
        if record is not None and 0 < record.plateau <= spec.done + epoch:
            channel.flush(epoch)
            return epoch + 1
    return spec.epochs


def _decision(spec: ReplicaSpec, epoch: int) -> Decide:
    rule, done = spec.stopping, spec.done

    def decide(
        previous: NDArray[np.float64] | None, reports: NDArray[np.float64]
    ) -> tuple[Sequence[float], bool, int | None]:
        last = spec.previous if previous is None else EpochRecord.from_row(previous)
        record = rule.decide(done + epoch, last, reports)
        return record.row(), record.last, _spared(spec, last)

    return decide


def _spared(spec: ReplicaSpec, last: EpochRecord | None) -> int | None:
    """Return the number of epochs of the group before the snapshot that must stay."""
    return None if last is None or last.kept < spec.done else last.kept - spec.done


@contextmanager
def _heartbeat(channel: Channel, seconds: float) -> Iterator[None]:
    """Send heartbeats at an interval while the body reads or encodes data."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(seconds):
            # The replica will get the error itself; the next heartbeat may succeed.
            with suppress(DPSError):
                channel.beat()

    # In the replica's context, so that calls to a shard come from its worker.
    thread = threading.Thread(
        target=copy_context().run, args=(beat,), name="dps-heartbeat", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def located(error: DPSError, spec: ReplicaSpec, channel: Channel | None) -> DPSError:
    """Add the replica's place to an error, unless the error names another rank."""
    rank = spec.rank
    if error.rank not in (None, rank):
        return error
    error.rank = rank
    error.worker = error.worker or spec.worker
    if error.step is None and channel is not None:
        error.step = channel.steps + 1  # the current step
    return error


def _notify(channel: Channel | None, what: Callable[[Channel], None]) -> None:
    """Call the channel, if there is one, and ignore a lost shard."""
    if channel is not None:
        with suppress(DPSError):
            what(channel)
