"""The launch of a plan: shards, windows of hosts, and the task of each replica.

It decides which ranks sum on their host and whether steps go by keys; it starts nothing.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dps.cluster.base import Cluster, ShardPlan
from dps.cluster.threads import LOCAL
from dps.data.collections.partitions import Piece
from dps.data.feed.cuts import TOGETHER
from dps.data.feed.held_out import HeldOut
from dps.data.survey.rows import DataSummary
from dps.optimizers.update import Rates, Update
from dps.server.group.window import INTERIM_WIDTH, WindowSpec
from dps.server.placement import Placement
from dps.server.shard import Initial, MonitorInfo, ShardSpec
from dps.server.store.snapshots import Snapshot
from dps.server.store.store import Arena, StoreSpec
from dps.server.store.tables import arena_of, rows_by_shard
from dps.training.epochs.records import EpochReport
from dps.training.job import Job
from dps.training.plan.batches import batch_rows, touches_little
from dps.training.plan.plan import ELEMENTS_PER_REPLICA, Located, Plan, place_shards
from dps.training.position import EpochSnapshot
from dps.training.progress import HISTORY
from dps.training.replica.channel import ChannelSpec, HostPlace
from dps.training.replica.spec import ReplicaSpec
from dps.training.replica.steps import ResumeAt

#: The ranks of each host; the first of them leads.
Hosts = tuple[tuple[int, ...], ...]

#: Products of a value and a parameter per step that justify a further replica, for which others
#: wait. On 20,000 rows of 50 columns a linear model took 22 ms with two replicas and 12 with one, a
#: factorization machine with 8 factors 175 and 204.
_WORK_PER_REPLICA = 1 << 16
#: Bytes of a key.
_KEY_BYTES = 8
#: A table is large if it takes more than this share of a worker's memory, with state and snapshots.
_LARGE = 0.25
#: Bytes of a shard's snapshots above which they are on disk, where no other process maps them.
_SPILLED = 256 << 20
#: Additional bytes of a row: its id, and the times of its last use and update.
_ROW_OVERHEAD_BYTES = 28
#: Bytes of X that are streamed together; up to 128 such cuts are in memory.
_CUT_BYTES = 1 << 18
_FEWEST_CUT = 256
#: Largest number of doubles in all ranks' reports of an epoch.
_MOST_REPORTED = 1 << 25


def rates_of(job: Job, plan: Plan, summary: DataSummary) -> Rates | None:
    """The rates of lazy updates if batches touch so little that steps go by keys, else None."""
    table = job.model.layout.table
    if table is None and job.mode.needs_table:
        raise ValueError(
            f"mode={job.mode!r} is for models with a table on the shards, such as "
            "FMClassifier(max_embeddings=...): use mode='sync' or 'async'"
        )
    if table is None and (job.full_batch is not None or not summary.sparse):
        return None
    kernel, native = job.model.kernel, job.optimizer.native
    updates = job.mode._updates([rank.steps for rank in plan.ranks])
    possible = kernel is not None and kernel.keyed and native is not None and native.lazy
    on_shards = possible and job.mode.shards_hold_parameters and summary.sparse
    if table is not None and not on_shards:
        raise ValueError(
            "max_embeddings needs sparse rows or a dataframe with categories, mode='sync', "
            "'async' or 'hybrid', and optimizer='adagrad', 'momentum', 'sgd' or Adam(lazy=True); "
            "got "
            f"{'sparse' if summary.sparse else 'dense'} rows, mode={job.mode!r} and "
            f"optimizer={job.optimizer!r}"
        )
    if not possible:
        if job.optimizer.always_lazy:
            raise ValueError(
                f"optimizer={job.optimizer!r} is not possible on sparse rows with `average`, or "
                "with a loss or model written in Python: use lazy=False"
            )
        return None
    assert kernel is not None
    # Lazy Adam is another algorithm and not only a faster one, so only the form of the data
    # decides.
    few = touches_little(summary, kernel.size, plan.batch_size, kernel.key_width)
    if not few and not job.optimizer.always_lazy and table is None:
        return None
    return Rates(
        job.schedule, updates, job.epochs_behind, job.position.version, job.epochs_ahead,
        kernel.key_width, 0 if table is None else table.rows,
    )  # fmt: skip


def located(
    job: Job, summary: DataSummary, cluster: Cluster, threads: Mapping[str, int]
) -> Located:
    """Return the training rows and where they are.

    If replicas wait for each other at each step, the work of a batch counts.
    """
    elements: float = summary.elements
    if job.full_batch is None and job.mode.together:
        rows = batch_rows(job.batch_size, summary.total) * job.mode.steps_apart
        of_each = job.model.layout.size / summary.n_features
        work = of_each * rows * elements / summary.total
        elements = min(elements, work / _WORK_PER_REPLICA * ELEMENTS_PER_REPLICA)
    return Located(summary.rows, cluster.holders[: len(summary.rows)], threads, elements)


def cut_rows(job: Job, summary: DataSummary) -> int:
    """Return the number of rows of a stream that are read together."""
    nbytes = _CUT_BYTES * (1 if job.full_batch is None else TOGETHER)
    return max(_FEWEST_CUT, int(nbytes / (summary.row_bytes + 1 / summary.total)))


@dataclass(frozen=True)
class Launch:
    """What follows from a plan for shards and replicas."""

    job: Job
    plan: Plan
    placement: Placement
    held_out: HeldOut  # held-out rows
    rates: Rates | None  # rates of lazy updates, if steps go by keys
    # The ranks of each host, if ranks of a host sum before one of them sends; see `hosts_of`.
    hosts: Hosts
    watched: bool  # whether shards report what replicas do
    timed: bool  # whether replicas record their time
    # True if the model's table is so large that each worker should have only its own part in
    # memory: shards do not share theirs, and keep snapshots on disk.
    large: bool = False

    @classmethod
    def of(
        cls, job: Job, plan: Plan, summary: DataSummary, held_out: HeldOut, cluster: Cluster
    ) -> Launch:
        """Decide what the plan leaves open."""
        rates = rates_of(job, plan, summary)
        hosts = hosts_of(job, plan, cluster)
        nbytes = _exchanged(job, plan, summary, rates, hosts)
        shards, sharding = place_shards(plan, job.execution.n_shards, nbytes)
        large = _is_large(job, cluster)
        if job.mode.uses_ring:
            shards, sharding = _of_ring(job, plan, hosts), "one for each member of the ring"
        elif large and job.execution.n_shards == "auto":
            shards = tuple(dict.fromkeys(rank.worker for rank in plan.ranks))
            sharding = "one for each worker, which has a part of the table in memory"
        unit = 1 if rates is None else rates.width
        placement = Placement.of(job.model.layout.size, len(shards), unit)
        plan = replace(plan, shards=shards[: len(placement)], sharding=sharding)
        return cls(
            job, plan, placement, held_out, rates, hosts, cluster.watched, cluster.timed, large
        )

    @property
    def key_width(self) -> int:
        """Elements per key; 0 if steps do not go by keys."""
        return 0 if self.rates is None else self.rates.width

    @property
    def pauses_every(self) -> float:
        """Seconds between snapshots within an epoch; infinity: none."""
        whole = self.rates is None and self.job.full_batch is None
        return self.job.mode.pauses_every if whole else math.inf

    @property
    def begun(self) -> EpochSnapshot | None:
        """The snapshot within an epoch that it starts from, or None if it starts with an epoch."""
        interim = self.job.position.interim
        possible = interim is not None and self.pauses_every < math.inf
        return (
            interim if interim is not None and possible and interim.within.fits(self.plan) else None
        )

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that take part in steps."""
        return _members(self.plan, self.hosts)

    def shards(self) -> list[ShardPlan]:
        """The shards, their part of a group, and their workers."""
        job, plan, layout = self.job, self.plan, self.job.model.layout
        holds = job.mode.shards_hold_parameters
        alone = set(plan.workers) == {LOCAL} and job.mode.access == "auto"
        # A fit in this process needs no file, which could outlive it; `access="stream"` must not
        # have one.
        shared = not (alone or self.large) and job.mode.access != "stream"
        seen = None
        if self.watched:
            together = job.mode.waits_for_all or job.full_batch is not None
            seen = MonitorInfo(tuple(rank.worker for rank in plan.ranks), together)
        stores = [
            StoreSpec(
                job.fit, shard, self.placement.size(shard), str(job.model.dtype),
                job.optimizer.state_rows, holds, layout.digest, self.key_width,
                n_snapshots=_places(job), arena=self._arena(shard),
                within=int(self.pauses_every < math.inf),
                spilled=self.large or (not shared and self._snapshots(shard) > _SPILLED),
            )
            for shard in range(len(plan.shards))
        ]  # fmt: skip
        rows: list[Snapshot | None] = [None] * len(stores)
        begun = job.position.kept if self.begun is None else self.begun.kept
        params, state, where = begun.params, begun.state, self.placement
        if (table := layout.table) is not None:
            rows = [*rows_by_shard(begun, table, self.placement)]
            behind = begun.split(table.width)[1]
            params, state = behind[0], behind[1:]
            where = self.placement.behind(table.rows * table.width)
        made = []
        for shard, (store, worker) in enumerate(zip(stores, plan.shards, strict=True)):
            members = len(self.members)
            window = WindowSpec(
                job.fit,
                len(plan.ranks),
                store,
                1 if shard else min(job.epochs_ahead, HISTORY),  # the first shard keeps them
                self.members if self.hosts else (),
                ring=-(-layout.size // members) if job.mode.uses_ring and members > 1 else 0,
                quorum=job.mode._quorum(len(plan.ranks)),
                gathers=job.mode.gathers,
                rounds=job.mode.narrow and not (holds or job.mode.uses_ring),
                reported=INTERIM_WIDTH if shard else self._reported(),
            )
            initial = Initial.of(where.take(shard, params), where.take(shard, state))
            runs = self.placement.segments(shard, layout.segments)
            spec = ShardSpec(
                window,
                initial,
                job.mode.channel,
                job.execution.timeout,
                begun.version,
                Update(job.optimizer, job.l1, job.l2, runs, self.rates) if holds else None,
                shared,
                seen,
            )
            made.append(ShardPlan(spec, worker, rows[shard]))
        return made

    def _reported(self) -> int:
        """Doubles in a rank's report of an epoch.

        Raises ValueError: a score reports too many.
        """
        own, score = len(EpochReport._fields), self.job.stopping.score
        if score is None:
            return own
        rows = [sum(map(self._kept, rank.pieces)) for rank in self.plan.ranks]
        width = score._width(max(rows))
        if len(rows) * width > _MOST_REPORTED:
            raise ValueError(
                f"the score that was asked for (scoring) looks at all {sum(rows):,} rows for "
                f"validation together, which take {len(rows) * width >> 17:,} MiB, more than "
                f"{_MOST_REPORTED >> 17}: give it fewer of them (validation_fraction, X_val), or "
                "use one that is a sum over rows"
            )
        return own + width

    def _kept(self, piece: Piece) -> int:
        """Held-out rows of a piece."""
        return self.held_out.count(piece.partition, piece.start, piece.stop)

    def _snapshots(self, shard: int) -> int:
        """Bytes of a shard's snapshots."""
        rows, job = 1 + self.job.optimizer.state_rows, self.job
        return int(_places(job) * rows * self.placement.size(shard) * job.model.dtype.itemsize)

    def _arena(self, shard: int) -> Arena | None:
        """A shard's part of the model's table."""
        job, table = self.job, self.job.model.layout.table
        if table is None:
            return None
        return arena_of(table, self.placement, shard, len(self.members), job.seed, job.optimizer)

    def summing(self) -> list[ShardPlan]:
        """The window of each host with several ranks, on the worker of its first rank."""
        job, size, dtype = self.job, self.job.model.layout.size, str(self.job.model.dtype)
        nothing = Initial(size, dtype, (0.0,))
        made = []
        for number, ranks in enumerate(self._shared_hosts()):
            store = StoreSpec(job.fit, number, size, dtype, key_width=self.key_width, n_snapshots=0)
            window = WindowSpec(job.fit, len(ranks), store)
            spec = ShardSpec(window, nothing, job.mode.channel, job.execution.timeout, shared=True)
            made.append(ShardPlan(spec, self.plan.ranks[ranks[0]].worker))
        return made

    def _shared_hosts(self) -> list[tuple[int, ...]]:
        return [ranks for ranks in self.hosts if len(ranks) > 1]

    def ranks(self, cut_rows: int) -> list[ReplicaSpec]:
        """Make the spec of each replica."""
        job, layout = self.job, self.job.model.layout
        segments = tuple(layout.segments(0, layout.size))
        update = Update(job.optimizer, job.l1, job.l2, segments, self.rates)
        fence = secrets.randbits(62) | 1
        places = {
            rank: HostPlace(number, ranks)
            for number, ranks in enumerate(self._shared_hosts())
            for rank in ranks
        }
        specs = []
        longest = max(part.steps for part in self.plan.ranks)
        interim = self.begun
        for rank, part in enumerate(self.plan.ranks):
            channel = ChannelSpec(
                rank=rank,
                n_ranks=len(self.plan.ranks),
                placement=self.placement,
                size=layout.size,
                dtype=str(job.model.dtype),
                schedule=job.schedule,
                update=update,
                timed=self.timed,
                host=places.get(rank),
                place=self.members.index(rank) if rank in self.members else -1,
                epoch_steps=longest,
                epochs_done=len(job.done),
            )
            spec = ReplicaSpec(
                fit=job.fit,
                fence=fence,
                worker=part.worker,
                channel=channel,
                mode=job.mode,
                model=job.model,
                targets=job.targets,
                pieces=part.pieces,
                cut_rows=cut_rows,
                steps=part.steps,
                stopping=job.stopping,
                seed=job.seed,
                shuffle=bool(job.shuffle),
                held_out=self.held_out,
                epochs_before=job.epochs_before,
                previous=job.done[-1] if job.done else None,
                full_batch=job.full_batch,
                finish=job.finish,
                pauses_every=self.pauses_every,
            )
            if interim is not None:
                loss, rows, pushes, seconds = interim.within.ranks[rank].tolist()
                steps = interim.within.steps
                spec = replace(spec, begun=ResumeAt(steps, loss, int(rows), int(pushes), seconds))
            specs.append(spec)
        return specs


def _exchanged(
    job: Job, plan: Plan, summary: DataSummary, rates: Rates | None, hosts: Hosts
) -> float:
    """Bytes of a gradient that a host, or a single rank on its host, sends per step."""
    itemsize = job.model.dtype.itemsize
    whole = float(job.model.layout.size * itemsize)
    if rates is None:
        return whole * 2 / itemsize if job.mode.narrow and job.full_batch is None else whole
    rows = max(rank.rows / max(1, rank.steps) for rank in plan.ranks)
    rows *= max(map(len, hosts), default=1)
    keys = rows * summary.elements / summary.total
    return min(whole, keys * (rates.width * itemsize + _KEY_BYTES))


def _places(job: Job) -> int:
    """Number of snapshots."""
    return 3 if job.stopping.validate else 2


def _is_large(job: Job, cluster: Cluster) -> bool:
    """True if a table is too large for the memory of one worker."""
    table = job.model.layout.table
    if table is None or job.mode.access == "mapped":
        return False
    row = (
        table.width * job.model.dtype.itemsize * (1 + job.optimizer.state_rows)
        + _ROW_OVERHEAD_BYTES
    )
    limit = cluster.memory()
    return bool(0 < limit * _LARGE < table.rows * row * (1 + _places(job)))


def _members(plan: Plan, hosts: Hosts) -> tuple[int, ...]:
    return tuple(ranks[0] for ranks in hosts) or tuple(range(len(plan.ranks)))


def _of_ring(job: Job, plan: Plan, hosts: Hosts) -> tuple[str, ...]:
    """Workers of the shards of a ring: each shard is at its rank."""
    workers = tuple(plan.ranks[rank].worker for rank in _members(plan, hosts))
    size = job.model.layout.size
    if job.execution.n_shards not in ("auto", len(workers)):
        raise ValueError(
            f"algorithm='ring' has a shard for each of its {len(workers)} members, got "
            f"dps.n_shards={job.execution.n_shards!r} of dask.config: leave it at 'auto'"
        )
    if size < len(workers):
        raise ValueError(
            f"algorithm='ring' cuts the parameters into a piece for each of its {len(workers)} "
            f"members, and there are {size}: use algorithm='direct'"
        )
    return workers


def hosts_of(job: Job, plan: Plan, cluster: Cluster) -> Hosts:
    """Return the ranks of each host whose gradients are summed before one rank sends.

    None if no ranks sum: no rank waits for others, all are on one host, or each host has one rank.
    """
    workers = [rank.worker for rank in plan.ranks]
    addresses = {worker.rpartition(":")[0] for worker in workers}
    mode = job.mode
    together = mode.waits_for_all and mode.access == "auto" and job.model.layout.table is None
    if not (together and 1 < len(addresses) < len(workers)):
        return ()
    groups: dict[str, list[int]] = {}
    for rank, host in enumerate(cluster.hosts(workers)):
        groups.setdefault(host, []).append(rank)
    return tuple(map(tuple, groups.values())) if len(groups) < len(workers) else ()
