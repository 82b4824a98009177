"""A bounded store of fits, made from events only.

The scheduler's plugin owns it. Events are added in the order of arrival, which need not be the
order in which they were sent.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from dps.monitor.advice import Account, advise
from dps.monitor.events import replicas_of
from dps.monitor.scheduler.checking import is_sound
from dps.monitor.scheduler.series import Series
from dps.monitor.scheduler.servers import Servers
from dps.monitor.words import sentence

#: Numbers of fits, of points per curve, and of sentences per fit.
FITS = 20
POINTS = 400
SENTENCES = 100
#: Seconds without an event after which a running fit counts as silent.
SILENCE = 15.0

#: Number of ids of forgotten fits, whose late events are ignored.
_FORGOTTEN = 1000

_NAN = float("nan")


class Fit:
    """One fit, as events describe it.

    number: the number of the fit in the store, from 1.
    began, heard: times of the first and the last event by the scheduler's clock.
    loading, started: the last `loading` and the last `started` event; empty without any.
    replicas, shards: the last figures, by rank and by number.
    losses: (epoch, loss, validation loss or NaN).
    rates: (seconds since the start, rows per second of each rank in order).
    stragglers: ranks that are slow now, with the reasons.
    log: time, kind and sentence of events; newest last.
    ended: the `stopped` or `failed` event.
    """

    def __init__(self, id: str, number: int, now: float) -> None:
        self.id = id
        self.number = number
        self.began = self.heard = now
        self.loading: Mapping[str, Any] = {}
        self.started: Mapping[str, Any] = {}
        self.replicas: dict[int, Mapping[str, Any]] = {}
        self.shards: dict[int, Mapping[str, Any]] = {}
        self.losses = Series(POINTS)
        self.rates = Series(POINTS)
        self.stragglers: dict[int, str] = {}
        self.log: deque[tuple[float, str, str]] = deque(maxlen=SENTENCES)
        self.ended: Mapping[str, Any] | None = None
        self._last_epoch: Mapping[str, Any] | None = None
        self._kept_epoch: Mapping[str, Any] | None = None  # the last known one

    def add(self, event: Mapping[str, Any], now: float) -> None:
        """Add one of its events."""
        self.heard = now
        take = getattr(self, f"_take_{event['kind']}", None)
        if take is None:  # a kind of a newer dps
            return
        take(event)
        said = sentence(event)
        if said is not None:
            if event["kind"] == "epochs" and self.log and self.log[-1][1] == "epochs":
                self.log.pop()  # one sentence for consecutive epochs suffices
            self.log.append((now, event["kind"], said))

    def _take_loading(self, event: Mapping[str, Any]) -> None:
        self.loading = event

    def _take_started(self, event: Mapping[str, Any]) -> None:
        self.started = event

    def _take_replicas(self, event: Mapping[str, Any]) -> None:
        self.replicas = dict(enumerate(replicas_of(event["replicas"])))
        if self.rates.last is None or len(self.rates.last) == len(self.replicas) + 1:
            rates = [self.replicas[rank]["rows_per_second"] for rank in sorted(self.replicas)]
            if not event["final"]:  # rates of the moment
                self.rates.add(event["seconds"], *rates)

    def _take_shard(self, event: Mapping[str, Any]) -> None:
        known, staleness = self.shards.get(event["shard"], event), event["staleness"]
        if not self.started.get("together", False):  # with many replicas only some events have it
            staleness = staleness or known["staleness"]
        self.shards[event["shard"]] = {**event, "staleness": staleness}

    def _take_epochs(self, event: Mapping[str, Any]) -> None:
        for epoch in event["epochs"]:
            validation = epoch["validation_loss"]
            self.losses.add(
                epoch["epoch"], epoch["loss"], _NAN if validation is None else validation
            )
            self._last_epoch = epoch
            if epoch["kept"] == epoch["epoch"]:
                self._kept_epoch = epoch

    def _take_straggler(self, event: Mapping[str, Any]) -> None:
        if event["slow"]:
            self.stragglers[event["rank"]] = event["why"]
        else:
            self.stragglers.pop(event["rank"], None)

    def _take_stopped(self, event: Mapping[str, Any]) -> None:
        self.ended = event

    def _take_failed(self, event: Mapping[str, Any]) -> None:
        self.ended = event

    @property
    def name(self) -> str:
        """Name of the fit: the estimator's class and a number."""
        return f"{(self.started or self.loading).get('name', 'Fit')} {self.number}"

    @property
    def running(self) -> bool:
        """True until the end of the fit is known."""
        return self.ended is None

    @property
    def outcome(self) -> str:
        """``"loading"``, ``"running"``, ``"failed"``, or the reason of its end."""
        if self.ended is None:
            return "loading" if self.loading and not self.started else "running"
        return "failed" if self.ended["kind"] == "failed" else str(self.ended["reason"])

    def silent(self, now: float) -> bool:
        """True for a running fit without recent events."""
        return self.running and now - self.heard > SILENCE

    def seconds(self, now: float) -> float:
        """Duration of the fit so far, or in all."""
        if self.ended is not None:
            return float(self.ended["seconds"])
        return max(0.0, min(now, self.heard + SILENCE) - self.began)

    @property
    def epochs(self) -> int:
        """Number of closed epochs."""
        if self.ended is not None:
            return int(self.ended["epochs"])
        return 0 if self._last_epoch is None else int(self._last_epoch["epoch"])

    @property
    def rows(self) -> int:
        """Rows of closed epochs."""
        return 0 if self._last_epoch is None else self.epochs * int(self._last_epoch["rows"])

    @property
    def loss(self) -> float | None:
        """Mean training loss of the last closed epoch."""
        return None if self._last_epoch is None else float(self._last_epoch["loss"])

    @property
    def validation_loss(self) -> float | None:
        """Validation loss of the last closed epoch, or None."""
        return (self._last_epoch or {}).get("validation_loss")

    @property
    def kept(self) -> Mapping[str, Any] | None:
        """The epoch whose parameters are kept, if it is known and not the last one."""
        kept, last = self._kept_epoch, self._last_epoch
        if kept is None or last is None or last["kept"] == last["epoch"]:
            return None
        return kept if kept["epoch"] == last["kept"] else None

    @property
    def epoch_done(self) -> float:
        """Share of the rows that the open epoch has used."""
        rows = self.started.get("rows", 0)
        if not self.running or not rows:
            return 0.0
        seen = sum(
            replica["epoch_rows"]
            for replica in self.replicas.values()
            if replica["epoch"] == self.epochs + 1
        )
        return min(1.0, float(seen / rows))

    @property
    def loss_now(self) -> tuple[float, float] | None:
        """The open epoch's position (3.25: a quarter of the fourth), and its mean loss so far."""
        known = [
            (replica["loss"], replica["epoch_rows"])
            for replica in self.replicas.values()
            if replica["epoch"] == self.epochs + 1 and replica["loss"] is not None
        ]
        rows = sum(seen for _, seen in known)
        if not self.running or not rows:
            return None
        return self.epochs + self.epoch_done, sum(value * seen for value, seen in known) / rows

    @property
    def accounts(self) -> list[Account]:
        """The time of each replica by phase, in rank order."""
        return [
            Account(
                rank=rank,
                worker=self.worker(rank),
                rows=replica["rows"],
                load=replica["load"],
                compute=replica["compute"],
                communicate=replica["pull"] + replica["push"],
                wait=replica["wait"],
            )
            for rank, replica in sorted(self.replicas.items())
        ]

    def worker(self, rank: int) -> str:
        """Address of a replica's worker; empty until the plan is known."""
        planned = self.started.get("replicas", ())
        return str(planned[rank]["worker"]) if rank < len(planned) else ""

    @property
    def staleness(self) -> float:
        """Mean over all pushes to the first shard."""
        pushes = sum(replica["step"] for replica in self.replicas.values())
        stale = sum(r["staleness_mean"] * r["step"] for r in self.replicas.values())
        return float(stale / pushes) if pushes else 0.0

    @property
    def advice(self) -> list[str]:
        """Advice; empty until enough is known."""
        if not self.started or (self.running and self.epochs == 0):
            return []
        full_batch = self.started["optimizer"] == "lbfgs"
        unshared = [
            (shard["worker"], shard["unshared"])
            for shard in self.started["shards"]
            if shard.get("unshared")
        ]
        return advise(
            self.accounts,
            together=self.started["together"],
            full_batch=full_batch,
            staleness=self.staleness,
            max_delay=self.started["max_delay"],
            dropped=self.dropped,
            unshared=unshared,
        )

    @property
    def dropped(self) -> float:
        """Share of rows of the last epoch that did not count."""
        if self._last_epoch is None:
            return 0.0
        dropped = self._last_epoch["rows_dropped"]
        return float(dropped / max(1, dropped + self._last_epoch["rows"]))

    @property
    def lead(self) -> int:
        """Largest number of steps that a replica was ahead of the slowest one."""
        return max((replica["lead_max"] for replica in self.replicas.values()), default=0)

    @property
    def rows_per_second(self) -> float:
        """Rows per second of all replicas, now or in the last epoch of an ended fit."""
        if self.running and self.replicas:
            return float(sum(replica["rows_per_second"] for replica in self.replicas.values()))
        if self._last_epoch is None or not self._last_epoch["seconds"]:
            return 0.0
        return float(self._last_epoch["rows"] / self._last_epoch["seconds"])

    @property
    def remaining(self) -> float | None:
        """Largest number of seconds until `max_epochs`; None if unknown."""
        most = self.started.get("max_epochs")
        if not self.running or most is None or self._last_epoch is None:
            return None
        left = max(0.0, most - self.epochs - self.epoch_done)
        return float(left * self._last_epoch["seconds"])


class FitStore:
    """The fits of a cluster, newest last.

    limit: number of fits; beyond it those that ended first are forgotten.
    servers: the parameter servers.
    outcomes: how ended fits have ended.
    revision: changes with every event, so that pages notice news.

    Examples
    --------
    >>> store = FitStore()
    >>> store.add({"v": 2, "kind": "stopped", "fit": "f00d", "time": 0.0, "reason": "converged",
    ...            "epochs": 3, "loss": 0.5, "seconds": 2.0}, now=10.0)
    >>> [(fit.name, fit.outcome) for fit in store.fits]
    [('Fit 1', 'converged')]
    """

    def __init__(self, limit: int = FITS) -> None:
        self._limit = limit
        self._fits: dict[str, Fit] = {}
        self._forgotten: deque[str] = deque(maxlen=_FORGOTTEN)
        self._count = 0
        self.servers = Servers()
        self.outcomes: Counter[str] = Counter()
        self.revision = 0

    @property
    def fits(self) -> list[Fit]:
        """In the order of their first events."""
        return list(self._fits.values())

    def get(self, id: str) -> Fit | None:
        """Return a fit, or None."""
        return self._fits.get(id)

    def add(self, event: Any, now: float) -> None:
        """Add an event, unless it is invalid or of another version."""
        if not is_sound(event):
            return
        if event["kind"] == "server":
            self.servers.add(event, now)
            self.revision += 1
            return
        if event["fit"] in self._forgotten:  # a late event must not bring a fit back
            return
        fit = self._fits.get(event["fit"])
        if fit is None:
            fit = self._fits[event["fit"]] = self._new(event["fit"], now)
        running = fit.running
        fit.add(event, now)
        if running and not fit.running:  # a repeated end counts once
            self.outcomes[fit.outcome] += 1
        self.revision += 1

    def lose(self, worker: str, now: float) -> None:
        """Record the loss of a worker."""
        self.revision += self.servers.lose(worker, now)

    def _new(self, id: str, now: float) -> Fit:
        self._count += 1
        while len(self._fits) >= self._limit:
            ended = (old for old, fit in self._fits.items() if not fit.running)
            oldest = next(ended, next(iter(self._fits)))
            del self._fits[oldest]
            self._forgotten.append(oldest)
        return Fit(id, self._count, now)
