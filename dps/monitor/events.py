"""The events of fits in Dask's topic ``dps``.

This module has the schema, its version, and the buckets of staleness. An event is a flat dict of
numbers, texts, lists and None that msgpack can encode, so that readers need no dps. Adding a field
keeps the version; removing one or changing its meaning makes a new one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict

#: Dask's topic. Topics are never removed, so all fits share one and events name their fit.
TOPIC = "dps"
VERSION = 2

#: Buckets of a histogram of staleness: 0, 1, 2-3, 4-7, ...
BUCKETS = 32

Kind = Literal[
    "loading",
    "started",
    "replicas",
    "shard",
    "epochs",
    "straggler",
    "recovered",
    "stopped",
    "failed",
    "server",
]
KINDS: tuple[Kind, ...] = (
    "loading", "started", "replicas", "shard", "epochs", "straggler", "recovered", "stopped",
    "failed", "server",
)  # fmt: skip


class Event(TypedDict):
    """Fields of every event.

    Attributes
    ----------
    v : int
        Version of this schema.
    kind : str
        One of :data:`KINDS`; says which further fields there are.
    fit : str
        Id of the fit; of a `server` event that of the server.
    time : float
        Seconds since 1970 by the clock of the sender. Several processes send: events of one
        fit may arrive in another order than they were sent.

    Notes
    -----
    To what a worker sends, Dask adds ``worker``, the address of the sender.
    """

    v: int
    kind: Kind
    fit: str
    time: float


class LoadingEvent(Event):
    """``loading``: training has not begun; sent by the client every second after the first.

    Attributes
    ----------
    name : str
        Of the estimator's class.
    phase : str
        "loading", "encoding", "looking at the rows" or "comparing fits to a sample".
    loaded, partitions : int
        Partitions that this phase is done with, and all partitions.
    seconds : float
        Since loading began.
    """

    name: str
    phase: str
    loaded: int
    partitions: int
    seconds: float


class ReplicaStart(TypedDict):
    """A replica of the plan: its rank, its worker's address, training rows and steps an epoch."""

    rank: int
    worker: str
    rows: int
    steps: int


class ShardStart(TypedDict):
    """A shard of the plan.

    Its number, its worker's address, the number of its parameters, and why it has no shared memory
    although that was wanted.
    """

    shard: int
    worker: str
    parameters: int
    unshared: NotRequired[str | None]


class StartedEvent(Event):
    """``started``: a plan and shards exist; sent by the client.

    It is sent once per generation of the fit: again if the mode changes, and after a loss.

    Attributes
    ----------
    name : str
        Of the estimator's class.
    mode, optimizer, loss : str
        Of the mode also the options that are not as they are by default. ``optimizer`` is
        ``"lbfgs"`` if each epoch is a step from all rows, ``"least squares"`` without replicas.
    together : bool
        Whether replicas wait for each other at every step.
    max_delay : int or None
        Steps that a replica may be ahead of the slowest one; None: there is no bound.
    dtype : str
    parameters : int
    rows : int
        Training rows, without those kept for validation.
    batch_rows : int
        Rows of one update.
    updates : int
        Updates an epoch.
    max_epochs, epochs_before : int
        Maximal number of epochs of this fit, and epochs of earlier fits that it continues.
    replicas : list of ReplicaStart
    shards : list of ShardStart
    """

    name: str
    mode: str
    together: bool
    max_delay: int | None
    optimizer: str
    loss: str
    dtype: str
    parameters: int
    rows: int
    batch_rows: int
    updates: int
    max_epochs: int
    epochs_before: int
    replicas: list[ReplicaStart]
    shards: list[ShardStart]


class ReplicaColumns(TypedDict):
    """Replicas at the moment, one item per rank; counts grow from the start of the fit.

    The last three may be empty, which means 0 for all. The worker of each rank is in ``started``.

    Attributes
    ----------
    epoch : list of int
        The one at work, from 1; 0 while data is read.
    step : list of int
        Gradients handed over, of all epochs.
    rows : list of int
        Rows seen, of all epochs.
    epoch_rows : list of int
        Rows seen in this epoch.
    rows_per_second : list of float
        Since the last event.
    loss : list of (float or None)
        Mean training loss of this epoch so far; None before its first step.
    load : list of float
        Seconds of reading, converting and cutting out rows.
    compute : list of float
        Seconds of gradients, and validation losses.
    pull : list of float
        Seconds of copying parameters; none where they are read where they lie.
    push : list of float
        Seconds of handing gradients over: copying, summing, applying, and the network.
    wait : list of float
        Seconds of waiting for other replicas.
    staleness_mean, staleness_max : list of float
        Of pushes to the first shard.
    lead_max : list of int
        Steps that it was ahead of the slowest replica when it began one, at most; 0 if no replica
        counts them.
    """

    epoch: list[int]
    step: list[int]
    rows: list[int]
    epoch_rows: list[int]
    rows_per_second: list[float]
    loss: list[float | None]
    load: list[float]
    compute: list[float]
    pull: list[float]
    push: list[float]
    wait: list[float]
    staleness_mean: list[float]
    staleness_max: list[float]
    lead_max: list[int]


#: Figures whose column may be empty, and their value then.
_ABSENT: dict[str, Any] = {"staleness_mean": 0.0, "staleness_max": 0.0, "lead_max": 0}


def replicas_of(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return the figures of each replica in rank order; none if columns have unequal lengths.

    Examples
    --------
    >>> replicas_of({"step": [3, 4], "rows": [30, 40], "lead_max": []})
    [{'step': 3, 'rows': 30, 'lead_max': 0}, {'step': 4, 'rows': 40, 'lead_max': 0}]
    """
    n = len(columns["step"])
    whole = {k: (v or [_ABSENT[k]] * n) if k in _ABSENT else v for k, v in columns.items()}
    if any(len(column) != n for column in whole.values()):
        return []
    return [dict(zip(whole, each, strict=True)) for each in zip(*whole.values(), strict=True)]


class ReplicasEvent(Event):
    """``replicas``: progress of all; sent by the first shard's worker, a few times a second.

    With more than 25 replicas it is sent less often: 25 times in as many seconds as there are
    replicas.

    Attributes
    ----------
    seconds : float
        Since the shard was made.
    final : bool
        Whether this is the last one of the fit.
    replicas : ReplicaColumns
    """

    seconds: float
    final: bool
    replicas: ReplicaColumns


class ShardEvent(Event):
    """``shard``: the load of one shard; sent by its worker, a few times a second.

    Attributes
    ----------
    shard : int
    worker : str
    seconds : float
        Since the shard was made.
    final : bool
        Whether this is the last one of the fit.
    version : int
        Updates applied.
    pushes : int
        Gradients received, of all replicas.
    pushes_per_second : float
        Since the last event.
    bytes : int
        Of the gradients received, with their keys.
    bytes_per_second : float
    apply_seconds : float
        Time that replicas, or the shard on behalf of far ones, have spent on its memory:
        copying gradients in, summing and applying them. Not the time they waited.
    nbytes : int
        Memory of the shard.
    staleness : list of list of int
        Pushes of each rank by staleness: of 0, of 1, of 2 to 3, of 4 to 7, and so on; zeros at the
        end are left out. It is the row of a heat map. Empty but in async, where above 25 replicas
        only an event that follows a ``replicas`` event has it.
    """

    shard: int
    worker: str
    seconds: float
    final: bool
    version: int
    pushes: int
    pushes_per_second: float
    bytes: int
    bytes_per_second: float
    apply_seconds: float
    nbytes: int
    staleness: list[list[int]]


class EpochFields(TypedDict):
    """A closed epoch, as a record of the estimator's ``history_``; None stands for NaN.

    ``kept`` is the epoch whose parameters are kept so far: the best one if held-out rows decide.
    """

    epoch: int
    kept: int
    loss: float
    validation_loss: float | None
    rows: int
    seconds: float
    staleness_mean: float
    staleness_max: float
    clock_distance_max: float | None
    rows_dropped: int
    rows_late: int


class EpochsEvent(Event):
    """``epochs``: newly closed epochs; sent by the client, at most a few times a second.

    Attributes
    ----------
    epochs : list of EpochFields
        In order, the last closed one at the end.
    skipped : int
        Epochs closed since the last such event that are not listed, because there were more
        than one event should hold.
    """

    epochs: list[EpochFields]
    skipped: int


class StragglerEvent(Event):
    """``straggler``: a replica became slow or recovered; sent by the first shard's worker.

    Attributes
    ----------
    rank : int
    replica_worker : str
        The address of its worker. (Dask writes that of the sender into ``worker``.)
    slow : bool
        False: it has caught up.
    ratio : float or None
        Its rows a second of computing, over the median of the others'; None where it has
        computed nothing meanwhile.
    why : str
        In words.
    """

    rank: int
    replica_worker: str
    slow: bool
    ratio: float | None
    why: str


class RecoveredEvent(Event):
    """``recovered``: a worker was lost, and the fit continues; sent by the client.

    A ``started`` event follows; if only data was lost, it comes before.

    Attributes
    ----------
    what : str
        The error that said so, with the worker.
    epoch : int
        The epoch at work then.
    redone : int
        Closed epochs that are trained again, since their state was lost.
    dropped : int
        Rows that are trained on no more.
    seconds : float
        From the news to the next generation's begin, or until its data was there again.
    loading : bool
        Whether only data was lost.
    steps : int
        Steps of the epoch that are not taken again; 0: it begins again.
    """

    what: str
    epoch: int
    redone: int
    dropped: int
    seconds: float
    loading: bool
    steps: int


class StoppedEvent(Event):
    """``stopped``: the fit has ended with a result; sent by the client.

    Attributes
    ----------
    reason : str
        ``"converged"``, ``"max_iter"`` or ``"interrupted"`` (by Ctrl-C or a callback).
    epochs : int
        Closed.
    loss : float or None
        Of the last one.
    seconds : float
        From the start of the fit.
    """

    reason: Literal["converged", "max_iter", "interrupted"]
    epochs: int
    loss: float | None
    seconds: float


class FailedEvent(Event):
    """``failed``: the fit has ended with an error; sent by the client, if possible.

    Attributes
    ----------
    error : str
        Name of the exception's class.
    message : str
    worker : str or None
    rank, step : int or None
        Where it happened, as far as it is known.
    epochs : int
        Closed before.
    seconds : float
        From the start of the fit.
    """

    error: str
    message: str
    worker: str | None
    rank: int | None
    step: int | None
    epochs: int
    seconds: float


class ServerEvent(Event):
    """``server``: a shard of a `ParameterServer`; sent by its worker after changes.

    It belongs to no fit: ``fit`` is the id of the server.

    Attributes
    ----------
    name : str or None
        By which the server is found.
    shard, shards : int
        The shard's number, and how many there are.
    worker : str
    final : bool
        Whether the server has been closed.
    tensors : list of str
        Names of those that have a part here, up to 100.
    nbytes : int
        Memory of the shard.
    callers : list of str
        Who is connected, up to 100.
    reads_per_second, pushes_per_second, writes_per_second : float
        Since the last event, or since the last look where nothing was to be said; writes are
        pushes, adds, assigns and functions.
    """

    name: str | None
    shard: int
    shards: int
    worker: str
    final: bool
    tensors: list[str]
    nbytes: int
    callers: list[str]
    reads_per_second: float
    pushes_per_second: float
    writes_per_second: float


def event(kind: Kind, fit: str, **fields: object) -> dict[str, Any]:
    """Return an event of a fit or a server, with the fields of every event.

    Examples
    --------
    >>> made = event("stopped", "f00d", reason="converged", epochs=3, loss=0.5, seconds=1.0)
    >>> made["v"], made["kind"], made["fit"], made["reason"]
    (2, 'stopped', 'f00d', 'converged')
    """
    return {"v": VERSION, "kind": kind, "fit": fit, "time": time.time(), **fields}


def bucket(staleness: int) -> int:
    """Return the bucket of a staleness.

    Examples
    --------
    >>> [bucket(staleness) for staleness in (0, 1, 2, 3, 4, 7, 8)]
    [0, 1, 2, 2, 3, 3, 4]
    """
    return min(staleness.bit_length(), BUCKETS - 1)


def bucket_floor(number: int) -> int:
    """Return the least staleness in a bucket.

    Examples
    --------
    >>> [bucket_floor(number) for number in range(5)]
    [0, 1, 2, 4, 8]
    """
    return 1 << (number - 1) if number else 0
