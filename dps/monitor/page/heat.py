"""How stale the gradients of each replica are on each shard."""

from __future__ import annotations

from typing import Any

from bokeh.models import ColumnDataSource, HoverTool, LinearColorMapper

from dps.monitor.page.canvas import Canvas, replace
from dps.monitor.page.palette import Palette
from dps.monitor.page.view import View
from dps.monitor.store import Fit
from dps.monitor.words import staleness

__all__ = ["Staleness", "typical"]

_COLUMNS = ("x", "y", "heat", "text", "ink", "counts", "pushes")
#: Cells that have their figure written into them.
_WRITTEN = 200


def typical(counts: list[int]) -> tuple[int, str]:
    """The bucket of the median push, and the staleness that it stands for.

    Examples
    --------
    >>> typical([10, 3, 1]), typical([0, 0, 5]), typical([])
    ((0, '0'), (2, '2–3'), (0, '–'))
    """
    pushes = sum(counts)
    if not pushes:
        return 0, "–"
    bucket = next(b for b in range(len(counts)) if 2 * sum(counts[: b + 1]) >= pushes)
    low, high = (1 << bucket) >> 1, max(0, (1 << bucket) - 1)
    return bucket, str(low) if low == high else f"{low}–{high}"


class Staleness:
    """A heat map of replicas by shards: the staleness of the median push.

    Parameters
    ----------
    palette : Palette
    """

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
        replace(self._source, {name: [row[i] for row in rows] for i, name in enumerate(_COLUMNS)})
        if fit is None or not rows:
            self._canvas.say(_no_staleness(fit))
            return
        self._canvas.figure.x_range.update(start=-0.5, end=max(row[0] for row in rows) + 0.5)
        self._canvas.figure.y_range.update(start=max(row[1] for row in rows) + 0.5, end=-0.5)
        self._canvas.say(None)

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
            bucket, text = typical(of_rank)
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
    if fit.started.get("mode", "async") != "async":
        return (
            f"In <b>{fit.started['mode']}</b> replicas wait for each other at every step: "
            "no gradient is ever stale."
        )
    return "No gradient has been pushed yet."
