"""Rules for advice, from the time that replicas spend in each phase.

All functions are pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from dps.monitor.words import duration, host, percent

#: A share of all time that is worth reducing.
_LARGE_SHARE = 0.35
#: A share of computing time that needs no advice.
_GOOD_COMPUTE_SHARE = 0.6
#: A share of waiting for one replica that makes it worth naming.
_SOME = 0.15
#: Seconds of all replicas below which there is no advice.
_SHORT = 0.05
#: A replica is named if it computes, or has rows, this many times the median.
_UNEVEN = 1.5
#: Mean staleness, in updates of each other replica, from which a model may suffer.
_STALE = 4.0


@dataclass(frozen=True)
class Account:
    """The time of one replica by phase."""

    rank: int
    worker: str
    rows: int  # rows used
    load: float  # seconds
    compute: float
    communicate: float
    wait: float

    @property
    def seconds(self) -> float:
        """Its total time."""
        return self.load + self.compute + self.communicate + self.wait


def shares(accounts: Sequence[Account]) -> dict[str, float]:
    """Shares of all replicas' time; zeros if no time was recorded.

    Examples
    --------
    >>> shares([Account(0, "a", 10, 0.0, 3.0, 0.0, 1.0)])
    {'compute': 0.75, 'communicate': 0.0, 'wait': 0.25, 'load': 0.0}
    """
    whole = sum(account.seconds for account in accounts)
    parts = ("compute", "communicate", "wait", "load")
    return {
        part: sum(getattr(account, part) for account in accounts) / whole if whole else 0.0
        for part in parts
    }


def no_shared_memory(worker: str, why: str) -> str:
    """Advice for a shard whose window could not be in shared memory.

    Examples
    --------
    >>> no_shared_memory("tcp://10.0.0.7:4033", "No space left on device")[:57]
    'The shard on 10.0.0.7:4033 has no shared memory (No space'
    """
    return (
        f"The shard on {host(worker)} has no shared memory ({why}), so that all other processes "
        "use streams, at a cost a step: give /dev/shm more room, as by docker run --shm-size."
    )


def constant_is_as_good(loss: float, constant: float) -> str:
    """Advice for a classifier that may be no better than a constant.

    Examples
    --------
    >>> constant_is_as_good(0.58, 0.55)[:69]
    'The loss on held-out rows, 0.58, is not lower than that of a constant'
    """
    return (
        f"The loss on held-out rows, {loss:.4g}, is not lower than that of a constant, "
        f"{constant:.4g}: the features say nothing of y there, or the model fits its own rows too "
        "closely. Give it more rows, fewer columns or rare values (FrameEncoder(min_frequency=)), "
        "or a stronger alpha."
    )


def advise(
    accounts: Sequence[Account],
    *,
    together: bool,
    full_batch: bool,
    staleness: float = 0.0,
    max_delay: int | None = None,
    dropped: float = 0.0,
    unshared: Sequence[tuple[str, str]] = (),
    rises: bool = False,
) -> list[str]:
    """Advice, the most useful first; empty if there is none.

    together: whether replicas wait for each other at every step.
    full_batch: whether each epoch was one step from all rows (L-BFGS).
    staleness: mean staleness of pushes.
    max_delay: number of steps that a replica may be ahead of the slowest; None: unlimited.
    dropped: share of rows that did not count.
    unshared: sequence of (str, str), workers whose shards have no shared memory although it was
        wanted, and the reasons.
    rises: whether the loss on validation rows rose at the end, although it decided nothing.

    Examples
    --------
    >>> busy = [Account(rank, "a", 10, 0.0, 3.0, 0.5, 6.5) for rank in range(2)]
    >>> advise(busy, together=True, full_batch=False)
    ["65% of the time is waiting: use mode='async', fewer replicas or a larger batch_size."]
    """
    part = shares(accounts)
    whole = sum(account.seconds for account in accounts)
    said = [no_shared_memory(worker, why) for worker, why in unshared[:1]]
    if rises:
        said.append(
            "The loss on held-out rows rose in the end: set early_stopping=True, which keeps the "
            "best epoch, or train fewer epochs."
        )
    if whole < _SHORT:
        return said
    if part["load"] > _LARGE_SHARE:
        said.append(
            f"{percent(part['load'])} of the time is reading and converting rows: persist the data "
            "in the form in which it is trained on (float32 or float64, or CSR) before the fit."
        )
    in_step = together or full_batch
    waited_for = _waited_for(accounts, together and not full_batch)
    if waited_for and part["wait"] > _SOME:
        said.append(f"{percent(part['wait'])} of the time is waiting for {waited_for}")
    elif part["wait"] > _LARGE_SHARE:
        remedy = _remedy(together, full_batch, max_delay)
        said.append(f"{percent(part['wait'])} of the time is waiting{remedy}")
    if part["communicate"] > _LARGE_SHARE:
        said.append(_communicating(accounts, part["communicate"], full_batch))
    if not in_step and staleness > _STALE * max(1, len(accounts) - 1):
        said.append(
            f"Gradients are {staleness:.1f} updates old on average: use fewer replicas, a larger "
            "batch_size, mode=dps.Async(max_delay=1), or mode='sync'."
        )
    if dropped > _SOME and not _is_uneven(accounts):
        said.append(
            f"{percent(dropped)} of the rows were dropped because they came late, though no "
            "replica is much slower than the others: let more of them count (drop_after=, "
            "backups=, late_gradients='add')."
        )
    if not said and part["compute"] > _GOOD_COMPUTE_SHARE:
        said.append(
            f"{percent(part['compute'])} of the time is computing: more workers would make it "
            "faster, settings would not."
        )
    return said


def _is_uneven(accounts: Sequence[Account]) -> bool:
    """True if a replica takes much longer per row than the others."""
    paces = [account.compute / account.rows for account in accounts if account.rows]
    return len(paces) < len(accounts) or max(paces) > _UNEVEN * median(paces)


def _waited_for(accounts: Sequence[Account], at_steps: bool) -> str | None:
    """Advice on the one replica that is much later than the others, with the reason.

    `at_steps`: whether the others wait for it at every step.
    """
    slowest = max(accounts, key=lambda account: account.compute + account.load)
    others = [account for account in accounts if account is not slowest]
    if not others:
        return None
    usual = median(account.compute + account.load for account in others)
    rows = median(account.rows for account in others)
    name = f"replica {slowest.rank} on {host(slowest.worker)}"
    if slowest.rows > _UNEVEN * rows:
        return (
            f"{name}, which has {slowest.rows / max(1, rows):.1f} times the rows of the others: "
            "set dps.rebalance of dask.config to True, or repartition the data."
        )
    if slowest.compute + slowest.load > _UNEVEN * usual:
        remedy = ", or use mode=dps.Sync(backups=1) or mode='async'" if at_steps else ""
        return (
            f"{name}, which computes {duration(slowest.compute + slowest.load)} where the others "
            f"take {duration(usual)}: see what else runs on that machine{remedy}."
        )
    return None


def _remedy(together: bool, full_batch: bool, max_delay: int | None) -> str:
    if full_batch:
        return ": use fewer replicas; there is too little to compute between two meetings."
    if max_delay is not None:
        return (
            f": let replicas be further apart, as with max_delay={max(4, 4 * max_delay)}, or use "
            "fewer of them."
        )
    if not together:
        return ", for the slowest replica at the ends of epochs: use fewer replicas."
    return ": use mode='async', fewer replicas or a larger batch_size."


def _communicating(accounts: Sequence[Account], share: float, full_batch: bool) -> str:
    begins = f"{percent(share)} of the time is moving parameters and gradients"
    near = len({host(account.worker).rpartition(":")[0] for account in accounts}) == 1
    if full_batch:
        return f"{begins}: use fewer replicas."
    where = (
        ""
        if near
        else ", mode=dps.AllReduce(period=16), or workers on one host, which share memory"
    )
    return f"{begins}: use a larger batch_size, fewer replicas{where}."
