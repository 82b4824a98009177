"""Panels of HTML: the figures of the fit in focus, shards, events and parameter servers.

A panel prepares the values, and its template shows them, escaped.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from dask.utils import format_bytes
from jinja2 import Environment, FileSystemLoader

from dps.monitor.page.canvas import div, write
from dps.monitor.page.palette import Palette
from dps.monitor.page.view import View
from dps.monitor.scheduler.servers import Server
from dps.monitor.scheduler.store import Fit
from dps.monitor.words import count, duration, host, loss, method, percent, plural

#: Largest numbers of stragglers, of named tensors and workers, and of sentences.
_STRAGGLERS, _NAMED, _SENTENCES = 4, 6, 40

_HERE = Path(__file__).parent
_TEMPLATES = Environment(loader=FileSystemLoader(_HERE), autoescape=True)
_TEMPLATES.filters |= {
    "clock": lambda at: time.strftime("%H:%M:%S", time.localtime(at)),
    "count": count,
    "format_bytes": format_bytes,
    "host": host,
    "percent": percent,
    "plural": plural,
}


class HtmlPanel:
    """A panel that is rendered by the template with its name.

    palette: the page's style sheet applies its colours.
    """

    name: ClassVar[str]

    def __init__(self, palette: Palette) -> None:
        self.root = div((_HERE / "panels.css").read_text(), self.name)
        self._template = _TEMPLATES.get_template(f"{self.name}.html")

    def update(self, view: View) -> None:
        """Render the template again."""
        write(self.root, self._template.render(self.values(view)))

    def values(self, view: View) -> dict[str, Any]:
        """The values for the template."""
        raise NotImplementedError


class Headline(HtmlPanel):
    """Progress, loss, speed and stragglers of the fit in focus, in large type."""

    name = "headline"

    def values(self, view: View) -> dict[str, Any]:
        """Its state, figures and slow replicas."""
        fit, now = view.focus, view.now
        if fit is None:
            return {"fit": None}
        state, said = fit.outcome, fit.outcome
        if fit.silent(now):
            state, said = "silent", f"nothing heard for {duration(now - fit.heard)}"
        elif said == "max_iter":
            said = "ended by max_iter"
        stragglers = sorted(fit.stragglers.items()) if fit.running else []
        return {
            "fit": fit,
            "state": state,
            "said": said,
            "what": _what(fit),
            "ended": "" if fit.running else "failed" if fit.outcome == "failed" else "ended",
            "progress": _progress(fit),
            "tiles": _tiles(fit, now),
            "slow": [
                (rank, f"on {host(_worker(fit, rank))} is slow: {why}")
                for rank, why in stragglers[:_STRAGGLERS]
            ],
            "more": max(0, len(stragglers) - _STRAGGLERS),
        }


def _what(fit: Fit) -> str:
    started = fit.started
    if not started:
        return ""
    return (
        f"{started['mode']} · {method(started['optimizer'])} · {started['loss']} · "
        f"{count(started['rows'])} rows · {count(started['parameters'])} parameters · "
        f"{plural(len(started['replicas']), 'replica')} · "
        f"{plural(len(started['shards']), 'shard')}"
    )


def _progress(fit: Fit) -> float:
    if not fit.running:
        return 1.0
    if fit.outcome == "loading":
        return float(fit.loading["loaded"]) / max(1, fit.loading["partitions"])
    most = max(1, int(fit.started.get("max_epochs", 1)))
    return min(1.0, (fit.epochs + fit.epoch_done) / most)


def _tiles(fit: Fit, now: float) -> list[tuple[str, str]]:
    if fit.outcome == "loading":
        of = plural(fit.loading["partitions"], "partition")
        return [
            (f"of {of}, {fit.loading['phase']}", f"{fit.loading['loaded']:,}"),
            ("taken", duration(fit.seconds(now))),
        ]
    most = fit.started.get("max_epochs")
    of = f" of at most {most:,}" if most and fit.running else ""
    tiles = [(f"epochs{of}", f"{fit.epochs:,}")]
    if fit.running and fit.started.get("optimizer") != "lbfgs":
        tiles.append((f"of epoch {fit.epochs + 1:,}", f"{100 * fit.epoch_done:.0f}%"))
    tiles.append(("training loss", loss(fit.loss)))
    if fit.validation_loss is not None:
        tiles.append(("loss on held-out rows", loss(fit.validation_loss)))
    if fit.kept is not None and fit.kept["validation_loss"] is not None:
        epoch = f"{fit.kept['epoch']:,}"
        tiles.append((f"of the best epoch, {epoch}", loss(fit.kept["validation_loss"])))
    tiles.append(("rows/s", count(fit.rows_per_second)))
    tiles.append(("taken", duration(fit.seconds(now))))
    if fit.remaining is not None:
        tiles.append(("left at most", duration(fit.remaining)))
    if not fit.started.get("together", True) and fit.replicas:
        tiles.append(("updates stale, on average", f"{fit.staleness:.2f}"))
    if (bound := fit.started.get("max_delay")) is not None:
        tiles.append((f"steps ahead of at most {bound:,}", f"{fit.lead:,}"))
    if fit.dropped:
        tiles.append(("of rows dropped", f"{100 * fit.dropped:.0f}%"))
    return tiles


def _worker(fit: Fit, rank: int) -> str:
    return fit.worker(rank) or "its worker"


class Shards(HtmlPanel):
    """A row per shard: its size, traffic and load."""

    name = "shards"

    def values(self, view: View) -> dict[str, Any]:
        """The rows."""
        fit = view.focus
        if fit is None:
            return {"rows": []}
        rows = [_shard(fit, fit.shards[number]) for number in sorted(fit.shards)]
        return {"rows": rows, "running": fit.running}


def _shard(fit: Fit, shard: Mapping[str, Any]) -> dict[str, Any]:
    starts = fit.started.get("shards", ())
    held = [start["parameters"] for start in starts if start["shard"] == shard["shard"]]
    seconds = shard["seconds"]
    pushes, received = shard["pushes_per_second"], shard["bytes_per_second"]
    if not fit.running and seconds:  # the mean, for a fit that has ended
        pushes, received = shard["pushes"] / seconds, shard["bytes"] / seconds
    # Replicas update a shard in parallel, each its own slice.
    busy = shard["apply_seconds"] / (seconds * max(1, len(fit.replicas))) if seconds else 0.0
    return {
        **shard,
        "parameters": held[0] if held else None,
        "pushes": pushes,
        "received": received,
        "busy": min(1.0, busy),
    }


class EventLog(HtmlPanel):
    """Events of the shown fits as sentences, newest first."""

    name = "events"

    def values(self, view: View) -> dict[str, Any]:
        """Times, kinds, sentences and names of fits."""
        lines = ((*line, fit.name) for fit in view.others + view.fits for line in fit.log)
        newest = sorted(lines, key=lambda line: line[0])[-_SENTENCES:]
        return {"lines": newest[::-1]}


class ServersPanel(HtmlPanel):
    """A row per parameter server: contents, use and workers."""

    name = "servers"

    def values(self, view: View) -> dict[str, Any]:
        """The servers."""
        return {"servers": view.servers, "named": _NAMED, "workers_of": _workers}


def _workers(server: Server) -> list[tuple[str, bool]]:
    """Return addresses, with whether their shard is lost."""
    return list({s["worker"]: at in server.lost for at, s in server.shards.items()}.items())
