"""How the fit in focus is getting on, in large figures: progress, loss, speed, stragglers."""

from __future__ import annotations

from html import escape

from dps.monitor.page.canvas import div, write
from dps.monitor.page.palette import Palette
from dps.monitor.page.view import View
from dps.monitor.scheduler.store import Fit
from dps.monitor.words import count, duration, host, loss, method, plural

_CSS = """
:host { font: 14px/1.45 Helvetica, Arial, sans-serif; color: var(--dps-text); width: 100%; }
.top { display: flex; flex-wrap: wrap; gap: 4px 12px; align-items: baseline; }
.name { font-size: 20px; font-weight: 600; }
.pill { border-radius: 99px; padding: 1px 10px; font-size: 12px; font-weight: 600;
  color: var(--dps-card); background: var(--dps-good); }
.pill.running, .pill.loading { background: var(--dps-accent); }
.pill.max_iter, .pill.interrupted, .pill.silent { background: var(--dps-warn); }
.pill.failed { background: var(--dps-bad); }
.what { color: var(--dps-faint); }
.bar { height: 6px; border-radius: 3px; background: var(--dps-line); margin: 10px 0 12px;
  overflow: hidden; }
.bar i { display: block; height: 100%; border-radius: 3px; background: var(--dps-accent);
  transition: width .25s; }
.bar.ended i { background: var(--dps-good); }
.bar.failed i { background: var(--dps-bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(118px, 1fr));
  gap: 8px 16px; }
.tile b { display: block; font-size: 22px; font-weight: 600; line-height: 1.2;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.tile span { color: var(--dps-faint); font-size: 12px; }
.slow, .failure { margin-top: 12px; padding: 8px 12px; border-radius: 6px;
  border-left: 4px solid var(--dps-warn);
  background: color-mix(in srgb, var(--dps-warn) 12%, transparent); }
.failure { border-color: var(--dps-bad);
  background: color-mix(in srgb, var(--dps-bad) 12%, transparent); }
.advice { margin-top: 12px; color: var(--dps-faint); }
.advice div::before { content: "→ "; color: var(--dps-accent); }
.empty { text-align: center; padding: 18px 8px; color: var(--dps-faint); }
.empty b { display: block; font-size: 20px; color: var(--dps-text); margin-bottom: 6px; }
code { background: var(--dps-page); border: 1px solid var(--dps-line); border-radius: 4px;
  padding: 1px 6px; font-size: 13px; color: var(--dps-text); }
"""

_EMPTY = """<div class="empty"><b>No model has been trained here yet</b>
Curves appear by themselves as soon as an estimator of dps is fitted on this cluster:
<code>LinearClassifier().fit(X, y)</code></div>"""

_STATES = {
    "loading": "loading",
    "running": "running",
    "converged": "converged",
    "max_iter": "ended by max_iter",
    "interrupted": "interrupted",
    "failed": "failed",
}
#: Stragglers that are named; there may be many.
_NAMED = 4


class Headline:
    """The figures of the fit in focus.

    palette: its colours come from the page's style sheet.
    """

    def __init__(self, palette: Palette) -> None:
        self.root = div(_CSS, "headline")

    def update(self, view: View) -> None:
        """Write them anew."""
        text = _EMPTY if view.focus is None else _html(view.focus, view.now)
        write(self.root, text)


def _html(fit: Fit, now: float) -> str:
    state, said = fit.outcome, _STATES.get(fit.outcome, fit.outcome)
    if fit.silent(now):
        state, said = "silent", f"nothing heard for {duration(now - fit.heard)}"
    tiles = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(what)}</span></div>'
        for what, value in _tiles(fit, now)
    )
    ended = "" if fit.running else "failed" if fit.outcome == "failed" else "ended"
    return (
        f'<div class="top"><span class="name">{escape(fit.name)}</span>'
        f'<span class="pill {escape(state)}">{escape(said)}</span>'
        f'<span class="what">{escape(_what(fit))}</span></div>'
        f'<div class="bar {ended}"><i style="width:{100 * _progress(fit):.1f}%"></i></div>'
        f'<div class="tiles">{tiles}</div>{_stragglers(fit)}{_failure(fit)}{_advice(fit)}'
    )


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
            (f"of {of} loaded", f"{fit.loading['loaded']:,}"),
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


def _stragglers(fit: Fit) -> str:
    if not fit.running or not fit.stragglers:
        return ""
    named = [
        f"<b>{escape(f'Replica {rank}')}</b> "
        + escape(f"on {host(_worker(fit, rank))} is slow: {why}")
        for rank, why in sorted(fit.stragglers.items())[:_NAMED]
    ]
    more = len(fit.stragglers) - len(named)
    if more:
        named.append(f"and {more} more")
    return f'<div class="slow">{"<br>".join(named)}</div>'


def _worker(fit: Fit, rank: int) -> str:
    return str(fit.replicas[rank]["worker"]) if rank in fit.replicas else "its worker"


def _failure(fit: Fit) -> str:
    if fit.outcome != "failed":
        return ""
    return f'<div class="failure">{escape(fit.log[-1][2])}</div>'


def _advice(fit: Fit) -> str:
    said = "".join(f"<div>{escape(advice)}</div>" for advice in fit.advice)
    return f'<div class="advice">{said}</div>' if said else ""
