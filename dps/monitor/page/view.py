"""The interface of panels, and the choice of the fits that they show.

Panels read :mod:`dps.monitor.scheduler.store`; only this module decides which fits they show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dps.monitor.scheduler.servers import Server
from dps.monitor.scheduler.store import Fit, FitStore


@dataclass(frozen=True)
class View:
    """The fits to show."""

    fits: tuple[Fit, ...]  # fits with curves, newest last
    focus: Fit | None  # the fit that is shown in full; None without fits
    others: tuple[Fit, ...]  # fits that are drawn faintly for comparison
    now: float
    servers: tuple[Server, ...] = ()  # of the cluster


class Panel(Protocol):
    """A part of the page: a model of bokeh, and how it follows a view."""

    root: Any

    def update(self, view: View) -> None:
        """Show what there is."""


def view_of(store: FitStore, chosen: Sequence[str], now: float) -> View:
    """The chosen fits; those that run, or else the last one, where none is chosen.

    chosen: ids in the order in which they were chosen; the last one is shown in full.

    Examples
    --------
    >>> view_of(FitStore(), ["f00d"], now=0.0).focus is None
    True
    """
    servers = tuple(store.servers.shown(now))
    known = [fit for id in chosen if (fit := store.get(id)) is not None]
    if known:
        return View(tuple(known), known[-1], (), now, servers)
    fits = store.fits
    running = [fit for fit in fits if fit.running and not fit.silent(now)]
    shown = running or fits[-1:]
    others = tuple(fit for fit in fits if fit not in shown)
    return View(tuple(shown), shown[-1] if shown else None, others, now, servers)
