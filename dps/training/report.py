"""The report of a fit: how it ended, where each replica's time went, and advice.

A record with a text and an HTML form. The rules of the advice are in ``monitor/advice.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from dps.monitor.advice import Account, advise, constant_is_as_good, shares
from dps.monitor.words import count, duration, host, loss, percent
from dps.training.epochs.records import EpochRecord
from dps.training.job import FULL_BATCH, FitResult, Job
from dps.training.replica.activity import RankActivity
from dps.training.run.loss import Loss

#: Replicas that have a row; if there are more, those with the longest computing time.
_SHOWN = 16
#: A rise of the loss on held-out rows that is reported, as a share of its minimum.
_RISE = 0.05
_COLORS = {"compute": "#1f9d83", "communicate": "#e3b23c", "wait": "#e2654a", "load": "#8aa0bd"}
_PARTS = tuple(_COLORS)


@dataclass(frozen=True)
class KeptEpoch:
    """The epoch whose parameters the model has."""

    epoch: int  # number of the epoch, from 1
    rises: bool  # whether the loss on validation rows rose at the end, although it decided nothing


@dataclass(frozen=True)
class Shards:
    """The shards of the parameters."""

    number: int
    why: str = ""  # why there are this many; empty if there is one host
    # Workers whose shards have no shared memory although it was wanted, and the reasons.
    unshared: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        why = f" ({self.why})" if self.why else ""
        return f"{self.number} shard{'s' * (self.number != 1)}{why}"


@dataclass(frozen=True)
class FitReport:
    """A report on a fit: ``print(est.fit_report_)``, or show it in a notebook.

    Attributes
    ----------
    name : str
        Of the estimator's class.
    mode : str
    method : str
        The optimizer.
    outcome : str
        How it ended.
    epochs : int
    loss : float
        Of the epoch that was kept.
    validation_loss : float or None
        Likewise, on held-out rows; None without any.
    rows : int
        Training rows of an epoch.
    seconds : float
        Of all epochs, each as long as its slowest replica took.
    staleness : float or None
        Mean over the last epoch, in updates; None where replicas wait for each other at every step.
    shards : Shards
        Their `number`, the reason for it (`why`), and which are `unshared`.
    accounts : tuple of Account
        Where the time of each replica went.
    max_delay : int or None
        Steps that a replica might be ahead of the slowest one; None: there was no bound.
    clock_distance : float or None
        The largest number of steps that one was ahead; None if it was not counted.
    rows_dropped, rows_late : int
        Rows of all epochs that did not count, and those that came too late for their own step.
    kept : KeptEpoch or None
        The epoch after which the parameters are those of the model; `loss` and `validation_loss`
        are its own.
    losses : tuple of Loss
        Workers that died, after which the fit went on.
    chosen : str
        With ``mode="auto"`` which mode was chosen, and why.
    no_better : tuple of float or None
        Of a classifier the loss on held-out rows and that of a constant, if this one is not higher.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dps import LinearClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> report = LinearClassifier(random_state=0).fit(X, y).fit_report_
    >>> print(str(report).splitlines()[0])  # doctest: +ELLIPSIS
    LinearClassifier, sync by L-BFGS: converged after ... epochs and ..., loss ...
    """

    name: str
    mode: str
    method: str
    outcome: str
    epochs: int
    loss: float
    validation_loss: float | None
    rows: int
    seconds: float
    staleness: float | None
    shards: Shards
    accounts: tuple[Account, ...]
    kept: KeptEpoch | None = None
    max_delay: int | None = None
    clock_distance: float | None = None
    rows_dropped: int = 0
    rows_late: int = 0
    losses: tuple[Loss, ...] = ()
    chosen: str = ""
    no_better: tuple[float, float] | None = None

    @property
    def together(self) -> bool:
        """True if replicas wait for each other at every step."""
        return self.staleness is None

    @property
    def full_batch(self) -> bool:
        """True if each epoch was one step from all rows."""
        return self.method == FULL_BATCH

    @property
    def advice(self) -> list[str]:
        """Advice, the most useful first."""
        said = [] if self.no_better is None else [constant_is_as_good(*self.no_better)]
        return said + advise(
            self.accounts,
            together=self.together,
            full_batch=self.full_batch,
            staleness=self.staleness or 0.0,
            max_delay=self.max_delay,
            dropped=self.rows_dropped / max(1, self.rows * self.epochs),
            unshared=self.shards.unshared,
            rises=self.kept is not None and self.kept.rises,
        )

    @property
    def summary(self) -> str:
        """The first line: what was trained, and how it ended."""
        held_out = self.validation_loss
        validation = "" if held_out is None else f", {loss(held_out)} on held-out rows"
        other = self.kept is not None and self.kept.epoch != self.epochs
        kept = f"epoch {self.kept.epoch:,} kept: " if self.kept is not None and other else ""
        return (
            f"{self.name}, {self.mode} by {self.method}: {self.outcome} after {self.epochs:,} "
            f"epoch{'s' * (self.epochs != 1)} and {duration(self.seconds)}, "
            f"{kept}loss {loss(self.loss)}{validation}"
        )

    @property
    def _figures(self) -> str:
        counted = self.rows * self.epochs - self.rows_dropped
        speed = counted / self.seconds if self.seconds else math.inf
        figures = [
            f"{self.rows:,} rows an epoch",
            f"{count(speed)} rows/s",
            f"{len(self.accounts)} replica{'s' * (len(self.accounts) != 1)}",
            str(self.shards),
        ]
        if self.staleness is not None:
            figures.append(f"gradients {self.staleness:.2f} updates old on average")
        if self.clock_distance is not None:
            bound = "" if self.max_delay is None else f" of {self.max_delay} allowed"
            figures.append(f"replicas up to {self.clock_distance:.0f} steps apart{bound}")
        if self.rows_dropped:
            figures.append(f"{self.rows_dropped:,} rows dropped")
        if self.rows_late:
            figures.append(f"{self.rows_late:,} came late")
        return ", ".join(figures)

    @property
    def _lost(self) -> list[str]:
        return [f"Lost: {loss.line()}." for loss in self.losses]

    def _shown(self) -> Sequence[Account]:
        if len(self.accounts) <= _SHOWN:
            return self.accounts
        busiest = sorted(self.accounts, key=lambda account: account.compute)[-_SHOWN:]
        return sorted(busiest, key=lambda account: account.rank)

    def __str__(self) -> str:
        lines = [self.summary, self._figures, *filter(None, [self.chosen]), *self._lost]
        if any(account.seconds for account in self.accounts):
            lines += ["", *_table(self._shown(), self.accounts)]
        return "\n".join([*lines, *("\n" + said for said in self.advice)])

    def _repr_html_(self) -> str:
        rows = "".join(_bar(account) for account in self._shown() if account.seconds)
        legend = " ".join(f'<span style="color:{_COLORS[part]}">■</span> {part}' for part in _PARTS)
        said = "".join(f"<li>{escape(advice)}</li>" for advice in self.advice)
        return (
            '<div style="font-family:sans-serif;font-size:13px;max-width:760px">'
            f"<b>{escape(self.summary)}</b><br>{escape(self._figures)}"
            + "".join(f"<br>{escape(lost)}" for lost in self._lost)
            + (f"<br>{escape(self.chosen)}" if self.chosen else "")
            + (f'<div style="margin:8px 0 2px">{legend}</div>{rows}{_more(self)}' if rows else "")
            + (f'<ul style="margin:8px 0;padding-left:20px">{said}</ul>' if said else "")
            + "</div>"
        )


def _more(report: FitReport) -> str:
    left = len(report.accounts) - len(report._shown())
    return f"<div>and {left} replicas that compute less</div>" if left else ""


def _table(shown: Sequence[Account], accounts: Sequence[Account]) -> list[str]:
    head = ("replica", "worker", "rows", "time", *_PARTS)
    body = [
        (str(a.rank), host(a.worker), count(a.rows), duration(a.seconds), *_percents([a]))
        for a in shown
    ]
    if len(accounts) > len(shown):
        body.append(("...", f"{len(accounts) - len(shown)} that compute less", *[""] * 6))
    if len(accounts) > 1:
        whole = sum(account.seconds for account in accounts)
        rows = sum(account.rows for account in accounts)
        body.append(("all", "", count(rows), duration(whole), *_percents(accounts)))
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number == 1 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *body)
    ]


def _percents(accounts: Sequence[Account]) -> list[str]:
    parts = shares(accounts)
    return [percent(parts[part]) for part in _PARTS]


def _bar(account: Account) -> str:
    parts = shares([account])
    pieces = "".join(
        f'<span title="{part} {percent(parts[part])}" style="display:inline-block;height:14px;'
        f'width:{100 * parts[part]:.2f}%;background:{_COLORS[part]}"></span>'
        for part in _PARTS
    )
    return (
        '<div style="display:flex;gap:8px;align-items:center;line-height:18px">'
        f'<span style="flex:none;width:190px;overflow:hidden;white-space:nowrap">{account.rank} '
        f'<span style="opacity:.6">{escape(host(account.worker))}</span></span>'
        f'<span style="flex:1;display:flex">{pieces}</span>'
        f'<span style="flex:none;width:64px;text-align:right">{duration(account.seconds)}</span>'
        "</div>"
    )


def report_of(name: str, job: Job, result: FitResult) -> FitReport:
    """Make the report of a fit with at least one closed epoch."""
    last = result.history[-1]
    kept = next((record for record in result.history if record.epoch == last.kept), last)
    held_out = [record.validation_loss for record in result.history]
    distances = [r.clock_distance_max for r in result.history if r.clock_distance_max >= 0]
    return FitReport(
        name=name,
        mode=result.plan.mode.described,
        method=_method(job, result),
        outcome=_outcome(last, result.error),
        epochs=len(result.history),
        loss=kept.loss,
        validation_loss=None if math.isnan(kept.validation_loss) else kept.validation_loss,
        kept=KeptEpoch(
            1 + result.history.index(kept),
            not job.stopping.validate and held_out[-1] > (1 + _RISE) * min(held_out),
        ),
        rows=result.plan.rows,
        seconds=sum(record.seconds for record in result.history),
        staleness=None if result.plan.mode.together else last.staleness_mean,
        shards=Shards(
            len(result.plan.shards),
            result.plan.sharding,
            tuple(
                (worker, why)
                for worker, why in zip(result.plan.shards, result.unshared, strict=True)
                if why is not None
            ),
        ),
        accounts=tuple(_account(activity) for activity in result.activity),
        max_delay=result.plan.mode.bound,
        clock_distance=max(distances, default=None),
        rows_dropped=sum(record.rows_dropped for record in result.history),
        rows_late=sum(record.rows_late for record in result.history),
        losses=result.losses,
        chosen=result.chosen,
    )


def _method(job: Job, result: FitResult) -> str:
    first = sum(not record.full_batch for record in result.history)
    if first == 0 or not result.history[-1].full_batch:
        return job.method
    return f"{job.method} for {first} epochs, then in step by L-BFGS"


def _account(activity: RankActivity) -> Account:
    return Account(
        rank=activity.rank,
        worker=activity.worker,
        rows=activity.rows,
        load=activity.load,
        compute=activity.compute,
        communicate=activity.pull + activity.push,
        wait=activity.wait,
    )


def _outcome(last: EpochRecord, error: BaseException | None) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if error is not None:
        return "failed"
    if last.converged:
        return "converged"
    return "ended by max_iter" if last.last else "stopped by a callback"
