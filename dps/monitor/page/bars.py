"""The time of each replica, as a stacked bar."""

from __future__ import annotations

from typing import Any

from bokeh.models import BasicTicker, ColumnDataSource, FixedTicker, HoverTool, NumeralTickFormatter

from dps.monitor.advice import Account, shares
from dps.monitor.page.canvas import Canvas, replace
from dps.monitor.page.palette import Palette
from dps.monitor.page.view import View
from dps.monitor.words import duration, host, percent

#: Replicas that are named at the axis.
_NAMED = 16
#: Least share that gets its figure.
_WRITTEN = 0.08
_COLUMNS = ("y", "left", "right", "middle", "color", "part", "share", "text", "seconds", "worker")


class Times:
    """A bar per replica: compute, communicate, wait, load."""

    def __init__(self, palette: Palette) -> None:
        self._palette = palette
        self._canvas = canvas = Canvas(
            "times", palette, "share of a replica's time", "", x_range=(0, 1), y_range=(0.5, -0.5)
        )
        self._source = ColumnDataSource({name: [] for name in _COLUMNS})
        bars = canvas.figure.hbar(
            y="y", left="left", right="right", height=0.8, color="color", source=self._source
        )
        canvas.figure.text(
            x="middle", y="y", text="text", source=self._source, text_align="center",
            text_baseline="middle", text_color=palette.card, text_font_size="12px",
        )  # fmt: skip
        canvas.figure.add_tools(
            HoverTool(
                renderers=[bars],
                tooltips=[("", "@worker"), ("@part", "@share of its time, @seconds")],
            )
        )
        canvas.figure.xaxis.formatter = NumeralTickFormatter(format="0%")
        canvas.figure.ygrid.visible = False
        self.root = canvas.root

    def update(self, view: View) -> None:
        """Draw the replicas of the fit in focus."""
        fit = view.focus
        rows = (
            [] if fit is None else [cell for account in fit.accounts for cell in self._bar(account)]
        )
        if fit is None or not rows:
            self._canvas.show_text("Where the time of each replica goes will be here.")
            return
        replace(self._source, {name: [row[i] for row in rows] for i, name in enumerate(_COLUMNS)})
        axis, n = self._canvas.figure.yaxis[0], max(fit.replicas) + 1
        labels = {
            rank: f"{'⚠ ' if rank in fit.stragglers else ''}{rank}  {host(fit.worker(rank))}"
            for rank in fit.replicas
            if n <= _NAMED
        }
        if axis.major_label_overrides != labels:
            axis.major_label_overrides = labels
            axis.ticker = FixedTicker(ticks=list(labels)) if labels else BasicTicker(min_interval=1)
        self._canvas.figure.y_range.update(start=n - 0.4, end=-0.6)
        self._canvas.show_text(None)

    def _bar(self, account: Account) -> list[tuple[Any, ...]]:
        bar, left = [], 0.0
        for part, share in shares([account]).items():
            if share:
                bar.append(
                    (
                        account.rank, left, left + share, left + share / 2,
                        self._palette.parts[part], part, percent(share),
                        percent(share) if share >= _WRITTEN else "",
                        duration(getattr(account, part)),
                        f"replica {account.rank} on {host(account.worker)}",
                    )
                )  # fmt: skip
            left += share
        return bar
