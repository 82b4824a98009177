"""A bounded store of fits, made of events alone.

Owned by the scheduler's plugin, fed in the order in which events arrive, which need not be that
in which they were sent. It knows neither Dask nor bokeh.
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

#: Fits that are remembered; points of a curve; sentences of a fit.
FITS = 20
POINTS = 400
SENTENCES = 100
#: Seconds without an event after which a running fit counts as silent.
SILENCE = 15.0

#: Ids of fits that are no longer remembered, by which late events are known.
_FORGOTTEN = 1000

_NAN = float("nan")


class Fit:
    """One fit, as far as it has been heard of.

    number: counts the fits that the store has seen, from 1.
    began, heard: when the first and the last event came, by the clock of the scheduler.
    loading, started: the last `loading` event and the last `started` event; empty until one comes.
    replicas, shards: the last figures of each, by rank and by number.
    losses: (epoch, loss, validation loss or NaN).
    rates: (seconds since the start, rows a second of each rank in order).
    stragglers: ranks that are slow now, and why.
    log: when something was heard, of which kind, in words; the newest last.
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
        self._kept_epoch: Mapping[str, Any] | None = None  # the last one that is known

    def add(self, event: Mapping[str, Any], now: float) -> None:
        """Take in one of its events."""
        self.heard = now
        take = getattr(self, f"_take_{event['kind']}", None)
        if take is None:  # of a newer dps
            return
        take(event)
        said = sentence(event)
        if said is not None:
            if event["kind"] == "epochs" and self.log and self.log[-1][1] == "epochs":
                self.log.pop()  # of a run of epochs the last one says enough
            self.log.append((now, event["kind"], said))

    def _take_loading(self, event: Mapping[str, Any]) -> None:
        self.loading = event

    def _take_started(self, event: Mapping[str, Any]) -> None:
        self.started = event

    def _take_replicas(self, event: Mapping[str, Any]) -> None:
        self.replicas = dict(enumerate(replicas_of(event["replicas"])))
        if self.rates.last is None or len(self.rates.last) == len(self.replicas) + 1:
            rates = [self.replicas[rank]["rows_per_second"] for rank in sorted(self.replicas)]
            if not event["final"]:  # of a moment
                self.rates.add(event["seconds"], *rates)

    def _take_shard(self, event: Mapping[str, Any]) -> None:
        known, staleness = self.shards.get(event["shard"], event), event["staleness"]
        if not self.started.get("together", False):  # of many replicas only some events have it
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
        """Name of the fit: the estimator's class, and its number."""
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
        """True if it runs, and nothing has been heard for some time."""
        return self.running and now - self.heard > SILENCE

    def seconds(self, now: float) -> float:
        """Duration of the fit, so far or in all."""
        if self.ended is not None:
            return float(self.ended["seconds"])
        return max(0.0, min(now, self.heard + SILENCE) - self.began)

    @property
    def epochs(self) -> int:
        """Closed epochs."""
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
        """The epoch whose parameters are kept, if that is not the last one and it is known."""
        kept, last = self._kept_epoch, self._last_epoch
        if kept is None or last is None or last["kept"] == last["epoch"]:
            return None
        return kept if kept["epoch"] == last["kept"] else None

    @property
    def epoch_done(self) -> float:
        """Share of the rows that the open epoch has seen."""
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
        """The open epoch: how far it is (as 3.25 of the fourth), and its mean loss so far."""
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
        """The address of a replica's worker; empty until the plan is known."""
        planned = self.started.get("replicas", ())
        return str(planned[rank]["worker"]) if rank < len(planned) else ""

    @property
    def staleness(self) -> float:
        """Mean over all pushes, on the first shard."""
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
        """The share of rows of the last epoch that did not count."""
        if self._last_epoch is None:
            return 0.0
        dropped = self._last_epoch["rows_dropped"]
        return float(dropped / max(1, dropped + self._last_epoch["rows"]))

    @property
    def lead(self) -> int:
        """Steps that a replica was ahead of the slowest one, at most."""
        return max((replica["lead_max"] for replica in self.replicas.values()), default=0)

    @property
    def rows_per_second(self) -> float:
        """Rows a second of all replicas: now, or in the last epoch of a fit that has ended."""
        if self.running and self.replicas:
            return float(sum(replica["rows_per_second"] for replica in self.replicas.values()))
        if self._last_epoch is None or not self._last_epoch["seconds"]:
            return 0.0
        return float(self._last_epoch["rows"] / self._last_epoch["seconds"])

    @property
    def remaining(self) -> float | None:
        """Largest number of seconds until `max_epochs`; None while it is unknown."""
        most = self.started.get("max_epochs")
        if not self.running or most is None or self._last_epoch is None:
            return None
        left = max(0.0, most - self.epochs - self.epoch_done)
        return float(left * self._last_epoch["seconds"])


class FitStore:
    """The fits of a cluster, the newest last.

    limit: fits to remember; of more, those that ended first are forgotten.
    servers: the parameter servers that are there.
    outcomes: how the fits ended that have.
    revision: grows with every event, so that a page knows whether anything is new.

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
        """In the order in which they were first heard of."""
        return list(self._fits.values())

    def get(self, id: str) -> Fit | None:
        """A fit that is still remembered."""
        return self._fits.get(id)

    def add(self, event: Any, now: float) -> None:
        """Take in an event; what is none, or of another version, is left out."""
        if not is_sound(event):
            return
        if event["kind"] == "server":
            self.servers.add(event, now)
            self.revision += 1
            return
        if event["fit"] in self._forgotten:  # a straggling message is no new fit
            return
        fit = self._fits.get(event["fit"])
        if fit is None:
            fit = self._fits[event["fit"]] = self._new(event["fit"], now)
        running = fit.running
        fit.add(event, now)
        if running and not fit.running:  # an end that arrives twice counts once
            self.outcomes[fit.outcome] += 1
        self.revision += 1

    def lose(self, worker: str, now: float) -> None:
        """A worker has gone."""
        self.revision += self.servers.lose(worker, now)

    def _new(self, id: str, now: float) -> Fit:
        self._count += 1
        while len(self._fits) >= self._limit:
            ended = (old for old, fit in self._fits.items() if not fit.running)
            oldest = next(ended, next(iter(self._fits)))
            del self._fits[oldest]
            self._forgotten.append(oldest)
        return Fit(id, self._count, now)
