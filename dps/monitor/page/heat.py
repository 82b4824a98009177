"""The staleness of each replica's gradients on each shard."""

from __future__ import annotations

from html import escape
from typing import Any

from bokeh.models import ColumnDataSource, HoverTool, LinearColorMapper

from dps.monitor.page.canvas import Canvas, replace
from dps.monitor.page.palette import Palette
from dps.monitor.page.view import View
from dps.monitor.scheduler.store import Fit
from dps.monitor.words import staleness

_COLUMNS = ("x", "y", "heat", "text", "ink", "counts", "pushes")
#: Largest number of cells with figures.
_WRITTEN = 200


def within(counts: list[int], share: float) -> int:
    """Return the bucket up to which a share of the pushes lies.

    Examples
    --------
    >>> within([10, 3, 1], 0.5), within([10, 3, 1], 0.95)
    (0, 2)
    """
    needed = share * sum(counts)
    return next(bucket for bucket in range(len(counts)) if sum(counts[: bucket + 1]) >= needed)


def cell(counts: list[int]) -> tuple[int, str]:
    """Return colour and text of a cell, by the staleness that 95% of the pushes do not exceed.

    Examples
    --------
    >>> cell([10, 3, 1]), cell([0, 0, 5]), cell([5]), cell([])
    ((2, '0, most ≤ 3'), (2, '2–3'), (0, '0'), (0, '–'))
    """
    if not sum(counts):
        return 0, "–"
    median, most = within(counts, 0.5), within(counts, 0.95)
    low, high = (1 << median) >> 1, max(0, (1 << median) - 1)
    words = str(low) if low == high else f"{low}–{high}"
    return most, words if most == median else f"{words}, most ≤ {(1 << most) - 1}"


class Staleness:
    """A heat map of replicas by shards: the median staleness of pushes, and the 95th percentile."""

    def __init__(self, palette: Palette) -> None:
        self._palette = palette
        self._canvas = canvas = Canvas(
            "staleness", palette, "shard", "replica", x_range=(-0.5, 0.5), y_range=(0.5, -0.5)
        )
        self._source = ColumnDataSource({name: [] for name in _COLUMNS})
        self._colors = LinearColorMapper(palette=list(palette.heat), low=0, high=len(palette.heat))
        cells = canvas.figure.rect(
            "x", "y", width=0.94, height=0.94, source=self._source, line_color=None,
            fill_color={"field": "heat", "transform": self._colors},
        )  # fmt: skip
        canvas.figure.text(
            "x", "y", text="text", source=self._source, text_color="ink", text_align="center",
            text_baseline="middle", text_font_size="12px",
        )  # fmt: skip
        canvas.figure.add_tools(
            HoverTool(
                renderers=[cells],
                tooltips=[
                    ("", "replica @y on shard @x"),
                    ("pushes", "@pushes{0,0}"),
                    ("by staleness", "@counts"),
                ],
            )
        )
        canvas.figure.grid.visible = False
        for axis in canvas.figure.axis:
            axis.ticker.min_interval = 1
            axis.axis_line_color = None
        self.root = canvas.root

    def update(self, view: View) -> None:
        """Draw the shards of the fit in focus."""
        fit = view.focus
        rows = [] if fit is None else self._cells(fit)
        if fit is None or not rows:
            self._canvas.show_text(_no_staleness(fit))
            return
        replace(self._source, {name: [row[i] for row in rows] for i, name in enumerate(_COLUMNS)})
        self._canvas.figure.x_range.update(start=-0.5, end=max(row[0] for row in rows) + 0.5)
        self._canvas.figure.y_range.update(start=max(row[1] for row in rows) + 0.5, end=-0.5)
        self._canvas.show_text(None)

    def _cells(self, fit: Fit) -> list[tuple[Any, ...]]:
        counts = {
            (number, rank): list(of_rank)
            for number, shard in sorted(fit.shards.items())
            for rank, of_rank in enumerate(shard["staleness"])
        }
        if not any(map(sum, counts.values())):
            return []
        few = len(counts) <= _WRITTEN
        cells = []
        for (number, rank), of_rank in counts.items():
            bucket, text = cell(of_rank)
            ink = self._palette.text if bucket < 3 else self._palette.card
            if self._palette.name == "dark":
                ink = self._palette.text if bucket < 4 else self._palette.card
            cells.append(
                (number, rank, bucket, text if few else "", ink, staleness(of_rank), sum(of_rank))
            )
        return cells


def _no_staleness(fit: Fit | None) -> str:
    if fit is None:
        return "How stale gradients are will be here."
    if fit.started.get("together", False):
        return (
            f"In <b>{escape(fit.started['mode'])}</b> replicas wait for each other at every step: "
            "no gradient is ever stale."
        )
    return "No gradient has been pushed yet."
