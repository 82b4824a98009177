"""One fit from its data to its result: inspect, plan, launch, watch, collect.

The only place that waits for a fit as a whole. It knows clusters, modes and models by
their interfaces.
"""

from __future__ import annotations

import logging
import secrets
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dps.cluster.base import PATIENCE, Cluster, ReplicaTask, Running, Serving, until_known
from dps.data.batches import held_out_rows
from dps.data.exchange import count_rows
from dps.data.inspection import DataSummary
from dps.data.partitions import Piece
from dps.data.targets import TargetEncoding
from dps.errors import (
    ClusterError,
    NonFiniteError,
    ServerLostError,
    StalledError,
    StoppedError,
    WindowError,
    WorkerLostError,
)
from dps.group import ChannelSpec, HostPlace
from dps.models import Model
from dps.modes import Mode
from dps.monitor.advice import no_shared_memory
from dps.optimizers import Optimizer
from dps.optimizers.schedules import Schedule
from dps.optimizers.update import Rates, Update
from dps.server.parameter_server import Session
from dps.server.placement import Placement, place
from dps.server.shard import GroupSpec, Initial, ShardSpec, ShardStatus, Watched
from dps.server.store import StoreSpec
from dps.server.window import WindowSpec
from dps.training.activity import RankActivity
from dps.training.fit_events import FitEvents
from dps.training.full_batch import FullBatch
from dps.training.history import EpochRecord
from dps.training.holding_out import check_held_out
from dps.training.plan import Plan, make_plan, make_split
from dps.training.replica import Outcome, ReplicaSpec, run_replica
from dps.training.stopping import StoppingRule

__all__ = ["FitResult", "Job", "new_fit_id", "touches_little", "train"]

#: Told of closed epochs and how to get parameters; whether the fit is to end.
OnEpochs = Callable[[Sequence[EpochRecord], Callable[[], NDArray[np.floating] | None]], bool]

#: The ranks of each host; the first of them leads.
Hosts = tuple[tuple[int, ...], ...]

_log = logging.getLogger("dps")

_TICK = 0.25  # seconds between looks at a running fit
_CHECK_EVERY = 1.0  # seconds between questions to the scheduler
#: Elements that keys of 32 bits can count.
_MOST_KEYS = (1 << 31) - 1
#: Elements of a whole vector that are updated in the time that one is by its key.
_COST_OF_A_KEY = 8
#: Epochs of stochastic steps from which it pays to move rows.
_EPOCHS_WORTH = 10
#: Bytes of X that are streamed together; 64 such cuts and 64 more are in memory.
_CUT = 1 << 18
_FEWEST_CUT = 256
_HISTORY = 1 << 16  # closed epochs a window keeps; they are fetched once a tick


@dataclass(frozen=True)
class Job:
    """What is to be trained, and how.

    Parameters
    ----------
    fit : str
        Id of the fit.
    model : Model
    targets : TargetEncoding
    optimizer : Optimizer
    schedule : Schedule
    l1, l2 : float
        Strengths of the penalties on the penalised coordinates.
    mode : Mode
    stopping : StoppingRule
    params : (n,) array
        Where to start.
    state : (state_rows, n) array
        Optimizer state to start from.
    version : int
        Updates behind them.
    epochs_before : int
        Epochs behind them.
    batch_size, n_replicas, n_shards : int or "auto"
    rebalance : bool or "auto"
        Whether rows may be copied to other workers.
    seed : int
    shuffle : bool or "global"
        A fresh order each epoch; "global": of rows that are exchanged before the first one,
        but for L-BFGS, which sums over all rows in any order.
    validation_fraction : float
        0: no rows are kept for validation.
    timeout : float
        Seconds without progress that are an error.
    full_batch : FullBatch or None
        Train on all rows at once rather than by stochastic steps.
    on_epochs : callable, optional
        Called in the caller's thread, a few times a second, with the records of the epochs that
        have been closed since, and a function that returns the parameters after the last of
        them (None where the fit is further already). True ends the fit.
    name : str
        What is fitted, in the words of its user: the estimator's class.
    """

    fit: str
    model: Model
    targets: TargetEncoding
    optimizer: Optimizer
    schedule: Schedule
    l1: float
    l2: float
    mode: Mode
    stopping: StoppingRule
    params: NDArray[np.floating]
    state: NDArray[np.floating]
    version: int
    epochs_before: int
    batch_size: int | str
    n_replicas: int | str
    n_shards: int | str
    rebalance: bool | str
    seed: int
    shuffle: bool | str
    validation_fraction: float
    timeout: float
    full_batch: FullBatch | None = None
    on_epochs: OnEpochs | None = None
    name: str = ""


@dataclass(frozen=True)
class FitResult:
    """What a fit ended with: the state at the end of its last closed epoch.

    Attributes
    ----------
    params : (n,) array
        The parameters to report.
    raw_params : (n,) array
        The parameters to carry on from.
    state : (state_rows, n) array
    version : int
    history : list of EpochRecord
    plan : Plan
    activity : list of RankActivity
        What each replica did, in rank order; those that did not end are missing.
    error : BaseException or None
        What cut the fit short, to be raised once the rest has been kept.
    unshared : tuple of str or None
        Of each shard why it has no shared memory, where that was wanted.
    """

    params: NDArray[np.floating]
    raw_params: NDArray[np.floating]
    state: NDArray[np.floating]
    version: int
    history: list[EpochRecord]
    plan: Plan
    activity: list[RankActivity]
    error: BaseException | None
    unshared: tuple[str | None, ...]


def new_fit_id() -> str:
    """An id that no other fit has."""
    return secrets.token_hex(6)


def train(
    job: Job,
    summary: DataSummary,
    holders: list[str],
    cluster: Cluster,
    ending: Callable[[], None] = lambda: None,
) -> FitResult:
    """Train on data that the cluster has loaded.

    Parameters
    ----------
    job : Job
    summary : DataSummary
    holders : list of str
        The worker of each partition.
    cluster : Cluster
    ending : callable, optional
        Called once training has ended, before the result is fetched.

    Raises
    ------
    DPSError
        The fit failed before any epoch was closed, or in a way that leaves no result.
    """
    exchanged = job.shuffle == "global" and job.full_batch is None
    streamed = cluster.streamed()
    if streamed:
        _log.info("%d of %d partitions are read while training", len(streamed), len(holders))
    if streamed and exchanged:
        raise ValueError(
            f"shuffle='global' exchanges rows in memory, and partition {min(streamed)} is not kept "
            "there: use shuffle=True, which mixes rows of all partitions of a worker, or "
            "exchange them before, as by X.shuffle of a dask dataframe"
        )
    if exchanged:
        summary, holders = _exchange(job, summary, holders, cluster)

    check_held_out(job, summary, cluster)

    def count(piece: Piece) -> int:
        if not job.validation_fraction:
            return piece.rows
        held = held_out_rows(
            job.seed, piece.partition, summary.rows[piece.partition], job.validation_fraction
        )
        return int((~held[piece.start : piece.stop]).sum())

    plan = make_plan(
        job.mode,
        rows=summary.rows,
        count=count,
        elements=summary.elements,
        holders=holders,
        threads=cluster.threads(),
        batch_size=job.batch_size,
        n_replicas=job.n_replicas,
        n_shards=job.n_shards,
        rebalance=False if exchanged else _rebalance(job, bool(streamed)),
        # Whoever takes rows of a partition that is read as a whole reads all of it.
        mixed=bool(job.shuffle)
        and not (exchanged or job.full_batch is not None or any(streamed.values())),
    )
    layout = job.model.layout
    placement = place(
        job.mode.placement, [tensor.size for tensor in layout.tensors], len(plan.shards)
    )
    plan = replace(plan, shards=plan.shards[: len(placement)])
    rates = _rates(job, plan, summary)
    watched = cluster.watched
    hosts = _hosts(job, plan, rates, cluster)
    shards = _shards(job, plan, placement, rates, watched, hosts)
    session = cluster.serve(shards, placement, _summing(job, plan, hosts))
    tasks = _tasks(job, plan, placement, rates, _cut_rows(summary), watched, hosts)
    unshared = tuple(shard.card.unshared for shard in session.shards)
    for shard, why in enumerate(unshared):
        if why is not None:
            _log.warning("%s", no_shared_memory(plan.shards[shard], why))
    fit_events = FitEvents(job, plan, placement, unshared, cluster.tell) if watched else None
    try:
        running = cluster.launch(run_replica, tasks, session)
        result = _Watcher(job, plan, session, running, fit_events).run(ending)
    except BaseException as error:
        if fit_events is not None:
            fit_events.failed(error)
        raise
    if fit_events is not None:
        fit_events.ended(result)
    return result


def _exchange(
    job: Job, summary: DataSummary, holders: list[str], cluster: Cluster
) -> tuple[DataSummary, list[str]]:
    """Have every row go to a partition drawn by chance; the data as it lies then."""
    split, homes = make_split(
        job.seed,
        rows=summary.rows,
        elements=summary.elements,
        holders=holders,
        threads=cluster.threads(),
        n_replicas=job.n_replicas,
    )
    cluster.exchange(split, homes)
    rows = tuple(cluster.map(count_rows))
    if sum(rows) != summary.total:
        raise ClusterError(f"{summary.total} rows were exchanged, and {sum(rows)} have arrived")
    return replace(summary, rows=rows), homes


def _rebalance(job: Job, streamed: bool) -> bool | str:
    """Whether rows may move to other workers.

    "auto" leaves them where passes are few, or as cheap as those of L-BFGS, of which ten to
    thirty cost as much as moving: nobody knows whether there will be more. Rows that move
    lie in memory, which those of a stream did not fit into.
    """
    if job.rebalance != "auto":
        return job.rebalance
    if streamed:
        return False
    many = job.full_batch is None and job.stopping.max_iter >= _EPOCHS_WORTH
    return "auto" if many else False


def touches_little(summary: DataSummary, size: int, batch_size: int) -> bool:
    """Whether a batch touches so few of a linear model's parameters that keys of them pay."""
    # A column's value touches an element for each output.
    outputs = size / (summary.n_features + 1)
    touched = outputs * summary.elements / summary.total * batch_size
    return summary.sparse and touched * _COST_OF_A_KEY <= size


def _rates(job: Job, plan: Plan, summary: DataSummary) -> Rates | None:
    """The rates of lazy updates, where batches touch so little that they go by keys."""
    kernel, native = job.model.kernel, job.optimizer.native
    if job.full_batch is not None or not summary.sparse:
        return None
    updates = job.mode.updates([rank.steps for rank in plan.ranks])
    possible = (
        kernel is not None
        and kernel.keyed
        and native is not None
        and native.lazy
        and kernel.size < _MOST_KEYS
        and 3 * updates < _MOST_KEYS  # steps are counted in as many bits
    )
    if not possible:
        if job.optimizer.always_lazy:
            raise ValueError(
                f"optimizer={job.optimizer!r} is not possible on sparse rows with `average`, or "
                "with a loss or model written in Python: use lazy=False"
            )
        return None
    assert kernel is not None
    # Lazy Adam is another algorithm, not a faster way: the data's form alone decides.
    few = touches_little(summary, kernel.size, plan.batch_size)
    if not few and not job.optimizer.always_lazy:
        return None
    return Rates(job.schedule, updates, job.epochs_before, job.version, job.stopping.max_iter)


def _hosts(job: Job, plan: Plan, rates: Rates | None, cluster: Cluster) -> Hosts:
    """The ranks of each host, in order, where those of a host sum before one of them sends.

    None where each rank is asked for itself: nobody waits for others, all are on one host, or
    none has company there; and where steps go by keys.
    """
    workers = [rank.worker for rank in plan.ranks]
    addresses = {worker.rpartition(":")[0] for worker in workers}
    together = job.mode.together and job.mode.access == "auto" and rates is None
    if not (together and 1 < len(addresses) < len(workers)):
        return ()
    groups: dict[str, list[int]] = {}
    for rank, host in enumerate(cluster.hosts(workers)):
        groups.setdefault(host, []).append(rank)
    return tuple(map(tuple, groups.values())) if len(groups) < len(workers) else ()


def _summing(job: Job, plan: Plan, hosts: Hosts) -> list[Serving]:
    """The window of each host that has several ranks, on the worker of its first rank."""
    size, dtype = job.model.layout.size, str(job.model.dtype)
    nothing = Initial(size, dtype, (0.0,))
    made = []
    for number, ranks in enumerate(_with_company(hosts)):
        store = StoreSpec(job.fit, number, size, dtype, n_snapshots=0)
        group = GroupSpec(WindowSpec(job.fit, len(ranks), store), job.mode.end, job.timeout)
        worker = plan.ranks[ranks[0]].worker
        made.append(Serving(ShardSpec(store, nothing, shared=True), group, worker))
    return made


def _with_company(hosts: Hosts) -> list[tuple[int, ...]]:
    return [ranks for ranks in hosts if len(ranks) > 1]


def _places(hosts: Hosts) -> dict[int, HostPlace]:
    """Of each rank that sums with others its place among them."""
    return {
        rank: HostPlace(number, ranks)
        for number, ranks in enumerate(_with_company(hosts))
        for rank in ranks
    }


def _shards(
    job: Job, plan: Plan, placement: Placement, rates: Rates | None, watched: bool, hosts: Hosts
) -> list[Serving]:
    layout, holds = job.model.layout, job.mode.shards_hold_parameters
    alone = len(set(plan.workers)) == 1 and job.mode.access == "auto"
    seen = None
    if watched:
        together = job.mode.together or job.full_batch is not None
        seen = Watched(tuple(rank.worker for rank in plan.ranks), together)
    made = []
    for shard, worker in enumerate(plan.shards):
        store = StoreSpec(
            job.fit, shard, placement.size(shard), str(job.model.dtype), job.optimizer.state_rows,
            holds, layout.digest, rates is not None,
        )  # fmt: skip
        window = WindowSpec(
            job.fit, len(plan.ranks), store, min(job.stopping.max_iter, _HISTORY),
            tuple(ranks[0] for ranks in hosts),
        )  # fmt: skip
        penalised = placement.segments(shard, layout.segments)
        spec = ShardSpec(
            store,
            Initial.of(placement.take(shard, job.params), placement.take(shard, job.state)),
            job.version,
            Update(job.optimizer, job.l1, job.l2, penalised, rates) if holds else None,
            # One process needs no file; a forced gateway must not have one.
            shared=not alone and job.mode.access != "gateway",
        )
        made.append(Serving(spec, GroupSpec(window, job.mode.end, job.timeout, seen), worker))
    return made


def _cut_rows(summary: DataSummary) -> int:
    """Rows of a stream that are read together."""
    stored = np.dtype(summary.dtype).itemsize + (4 if summary.sparse else 0)
    return max(_FEWEST_CUT, int(_CUT * summary.total / (summary.elements * stored + 1)))


def _tasks(
    job: Job,
    plan: Plan,
    placement: Placement,
    rates: Rates | None,
    cut_rows: int,
    watched: bool,
    hosts: Hosts,
) -> list[ReplicaTask]:
    layout = job.model.layout
    segments = tuple(layout.segments(0, layout.size))
    update = Update(job.optimizer, job.l1, job.l2, segments, rates)
    fence = secrets.randbits(62) | 1
    places = _places(hosts)
    return [
        ReplicaTask(
            rank,
            part.worker,
            part.pieces,
            ReplicaSpec(
                fit=job.fit,
                fence=fence,
                worker=part.worker,
                channel=ChannelSpec(
                    rank=rank,
                    n_ranks=len(plan.ranks),
                    placement=placement,
                    size=layout.size,
                    dtype=str(job.model.dtype),
                    schedule=job.schedule,
                    update=update,
                    timed=watched,
                    host=places.get(rank),
                ),
                mode=job.mode,
                model=job.model,
                targets=job.targets,
                pieces=part.pieces,
                cut_rows=cut_rows,
                steps=part.steps,
                stopping=job.stopping,
                seed=job.seed,
                shuffle=bool(job.shuffle),
                validation_fraction=job.validation_fraction,
                epochs_before=job.epochs_before,
                full_batch=job.full_batch,
            ),
        )
        for rank, part in enumerate(plan.ranks)
    ]


class _Watcher:
    """Watches replicas to their end."""

    def __init__(
        self,
        job: Job,
        plan: Plan,
        session: Session,
        running: Running,
        fit_events: FitEvents | None,
    ) -> None:
        self._job = job
        self._events = fit_events
        self._plan = plan
        self._session = session
        self._unshared = tuple(shard.card.unshared for shard in session.shards)
        self._running = running
        self._history: list[EpochRecord] = []
        self._progress: dict[int, tuple[tuple[int, ...], float]] = {}

    def run(self, ending: Callable[[], None]) -> FitResult:
        """Wait for the end; the result, also of a fit that was interrupted or overflowed."""
        try:
            self._watch()
            ending()
        except ServerLostError:
            until_known(self._running.check)
            raise
        except (KeyboardInterrupt, NonFiniteError) as error:
            ending()
            self._stop()
            self._fetch()
            if not self._history:
                raise
            return self._result(error)
        self._fetch()
        return self._result(None)

    def _stop(self) -> None:
        self._session.stop(self._running.check)
        self._go_home()

    def _watch(self) -> None:
        began = checked = time.monotonic()
        for rank in range(len(self._plan.ranks)):
            self._progress[rank] = ((), began)
        while not self._running.wait(_TICK):
            self._raise_first_error()
            now = time.monotonic()
            if now - checked >= _CHECK_EVERY:
                self._running.check()
                checked = now
            elif self._job.on_epochs is None or now - began < _TICK:
                continue
            if self._fetch():
                self._stop()
                return
        self._raise_first_error()

    def _fetch(self) -> bool:
        """Take in the epochs that have been closed, and see that every rank gets on.

        Whether the fit is to end.
        """
        status = self._session.status(len(self._history), self._running.check)
        records = self._in_order([EpochRecord.from_row(row) for row in status.records])
        self._history += records
        if self._events is not None:
            self._events.closed(records)
        for record in records:
            _log.info("%s", record.line())
        self._check_progress(status)
        on_epochs = self._job.on_epochs
        return bool(records) and on_epochs is not None and on_epochs(records, self._reported)

    def _in_order(self, records: list[EpochRecord]) -> list[EpochRecord]:
        """The records, without those that stand where older ones were wanted."""
        first = len(self._history) + 1
        lost = [at for at, record in enumerate(records) if record.epoch != first + at]
        for at in lost:
            records[at] = EpochRecord.unknown(first + at, len(self._plan.ranks))
        if lost:
            warnings.warn(
                f"the records of {len(lost)} epochs (from {first + lost[0]} to {first + lost[-1]}) "
                f"are lost, and NaN in history_: more than {_HISTORY} epochs were closed between "
                "two fetches of them. The model is that of the last epoch all the same",
                UserWarning,
                stacklevel=2,
            )
        return records

    def _check_progress(self, status: ShardStatus) -> None:
        now = time.monotonic()
        ended = self._running.outcomes()
        for rank, progress in enumerate(status.progress):
            if self._progress[rank][0] != progress:
                self._progress[rank] = (progress, now)
        running = [rank for rank in self._progress if rank not in ended]
        if not running:
            return
        # A rank that waits says so; the silent one is the one that others wait for.
        last = min(running, key=lambda rank: (self._progress[rank][1], rank))
        if now - self._progress[last][1] > self._job.timeout:
            raise StalledError(
                f"no progress for {self._job.timeout:g} s; is the worker frozen or overloaded? "
                "raise `timeout` if a step may take longer",
                worker=self._plan.ranks[last].worker,
                rank=last,
                step=status.steps[last] + 1,
            )

    def _raise_first_error(self) -> None:
        outcomes: dict[int, Outcome] = self._running.outcomes()
        failed = [o for _, o in sorted(outcomes.items()) if o.error is not None]
        real = [o for o in failed if not isinstance(o.error, StoppedError)]
        if not real:
            return
        # A worker that died explains what its peers say better than they do.
        if any(isinstance(o.error, ServerLostError | WorkerLostError) for o in real):
            until_known(self._running.check)
        self._running.check()
        first = min(real, key=lambda o: (_RANKING.get(type(o.error), 0), o.rank))
        error = first.error
        assert error is not None
        if isinstance(error, WindowError) and (why := next(filter(None, self._unshared), None)):
            error.message += f"; it has no file of shared memory: {why}"
        if error.worker is None and error.rank is not None:  # a rank that others waited for
            error.worker = self._plan.ranks[error.rank].worker
        raise error from first.cause

    def _go_home(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self._running.wait(0.1) and time.monotonic() < deadline:
            continue

    def _reported(self) -> NDArray[np.floating] | None:
        """The parameters to report after the epochs so far, where they are still there."""
        try:
            values, _ = self._session.server.snapshot(len(self._history), self._running.check)
        except LookupError:
            return None
        return np.array(self._job.optimizer.result(values[0], values[1:]))

    def _result(self, error: BaseException | None) -> FitResult:
        values, version = self._session.server.snapshot(len(self._history), self._running.check)
        optimizer = self._job.optimizer
        if self._job.full_batch is not None:  # its snapshots have no state
            optimizer.initialize(values[1:])
        return FitResult(
            params=np.array(optimizer.result(values[0], values[1:])),
            raw_params=values[0],
            state=values[1:],
            version=version,
            history=self._history,
            plan=self._plan,
            activity=self._activity(),
            error=error,
            unshared=self._unshared,
        )

    def _activity(self) -> list[RankActivity]:
        outcomes: dict[int, Outcome] = self._running.outcomes()
        return [o.activity for _, o in sorted(outcomes.items()) if o.activity is not None]


#: Of several errors, the one that says most comes first: causes before consequences.
_RANKING: dict[type, int] = {ServerLostError: 1, WorkerLostError: 1, StalledError: 2}
