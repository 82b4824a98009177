"""Panels of HTML: the shards and their load, and what has happened, in words."""

from __future__ import annotations

import time
from collections.abc import Mapping
from html import escape
from typing import Any

from dask.utils import format_bytes

from dps.monitor.page.canvas import div, write
from dps.monitor.page.palette import Palette
from dps.monitor.page.view import View
from dps.monitor.scheduler.store import Fit
from dps.monitor.words import count, host, percent

_CSS = """
:host { font: 13px/1.5 Helvetica, Arial, sans-serif; color: var(--dps-text); width: 100%;
  overflow: auto; }
.empty { color: var(--dps-faint); font-size: 14px; padding: 96px 16px; text-align: center; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: right; font-weight: 400; color: var(--dps-faint); padding: 2px 8px;
  white-space: nowrap; }
td { text-align: right; padding: 5px 8px; border-top: 1px solid var(--dps-line);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
td small { display: block; color: var(--dps-faint); }
.busy { display: inline-block; width: 64px; height: 8px; border-radius: 4px;
  background: var(--dps-line); overflow: hidden; vertical-align: middle; margin-right: 6px; }
.busy i { display: block; height: 100%; background: var(--dps-part-communicate); }
ol { list-style: none; margin: 0; padding: 0; }
li { display: flex; gap: 10px; padding: 4px 0; border-top: 1px solid var(--dps-line); }
li:first-child { border: 0; }
li time { color: var(--dps-faint); flex: none; font-variant-numeric: tabular-nums; }
li.straggler span { color: var(--dps-warn); }
li.failed span { color: var(--dps-bad); }
li.stopped span { color: var(--dps-good); }
li b { font-weight: 600; }
"""
#: Sentences that are shown.
_SHOWN = 40


class Shards:
    """A row a shard: its size, what it receives, how busy it is.

    palette: its colours come from the page's style sheet.
    """

    def __init__(self, palette: Palette) -> None:
        self.root = div(_CSS, "shards")

    def update(self, view: View) -> None:
        """Write the table of the fit in focus."""
        fit = view.focus
        if fit is None or not fit.shards:
            text = '<div class="empty">The shards that hold the parameters will be here.</div>'
        else:
            rows = "".join(_row(fit, fit.shards[number]) for number in sorted(fit.shards))
            now = " now" if fit.running else ""
            text = (
                "<table><tr><th>shard</th><th>parameters</th><th>memory</th><th>updates</th>"
                f"<th>pushes/s{now}</th><th>received/s{now}</th><th>at work</th></tr>{rows}</table>"
            )
        write(self.root, text)


def _row(fit: Fit, shard: Mapping[str, Any]) -> str:
    starts = fit.started.get("shards", ())
    held = [start["parameters"] for start in starts if start["shard"] == shard["shard"]]
    seconds = shard["seconds"]
    pushes, received = shard["pushes_per_second"], shard["bytes_per_second"]
    if not fit.running and seconds:  # on average, once it is over
        pushes, received = shard["pushes"] / seconds, shard["bytes"] / seconds
    # Replicas work on a shard side by side, each for its own slice.
    busy = shard["apply_seconds"] / (seconds * max(1, len(fit.replicas))) if seconds else 0.0
    busy = min(1.0, busy)
    return (
        f"<tr><td>{escape(str(shard['shard']))}<small>{escape(host(shard['worker']))}</small></td>"
        f"<td>{count(held[0]) if held else '–'}</td>"
        f"<td>{format_bytes(shard['nbytes'])}</td><td>{shard['version']:,}</td>"
        f"<td>{count(pushes)}</td><td>{format_bytes(received)}</td>"
        f'<td><span class="busy"><i style="width:{100 * busy:.0f}%"></i></span>'
        f"{percent(busy)}</td></tr>"
    )


class EventLog:
    """What the shown fits have said, in words, the newest first.

    palette: its colours come from the page's style sheet.
    """

    def __init__(self, palette: Palette) -> None:
        self.root = div(_CSS, "happenings")

    def update(self, view: View) -> None:
        """Write the sentences."""
        fits = view.others + view.fits
        said = sorted(
            ((*line, fit.name) for fit in fits for line in fit.log), key=lambda line: line[0]
        )[-_SHOWN:]
        items = "".join(
            f'<li class="{escape(kind)}">'
            f"<time>{time.strftime('%H:%M:%S', time.localtime(at))}</time>"
            f"<span><b>{escape(name)}</b> {escape(words)}</span></li>"
            for at, kind, words, name in reversed(said)
        )
        nothing = '<div class="empty">What happens in a fit is shown here.</div>'
        text = f"<ol>{items}</ol>" if items else nothing
        write(self.root, text)
