"""Where the time of each replica goes, as a bar of parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bokeh.models import ColumnDataSource, HoverTool, NumeralTickFormatter

from dps.monitor.page.canvas import Canvas, replace
from dps.monitor.page.palette import Palette
from dps.monitor.page.view import View
from dps.monitor.words import duration, host, percent

__all__ = ["PARTS", "Times"]

#: The parts of a bar, in order, and the seconds that each is made of.
PARTS = {
    "compute": ("compute",),
    "communicate": ("pull", "push"),
    "wait": ("wait",),
    "load": ("load",),
}
#: Replicas whose workers are named at the axis.
_NAMED = 16
#: The least share that has its figure written into it.
_WRITTEN = 0.08
_COLUMNS = ("y", "left", "right", "middle", "color", "part", "share", "text", "seconds", "worker")


class Times:
    """A bar a replica: compute, communicate, wait, load.

    Parameters
    ----------
    palette : Palette
    """

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
        canvas.figure.yaxis.ticker.min_interval = 1
        canvas.figure.ygrid.visible = False
        self.root = canvas.root

    def update(self, view: View) -> None:
        """Draw the replicas of the fit in focus."""
        fit = view.focus
        rows: list[tuple[Any, ...]] = []
        for rank, replica in sorted(fit.replicas.items()) if fit is not None else ():
            rows += self._bar(rank, replica)
        replace(self._source, {name: [row[i] for row in rows] for i, name in enumerate(_COLUMNS)})
        if fit is None or not rows:
            self._canvas.say("Where the time of each replica goes will be here.")
            return
        axis, n = self._canvas.figure.yaxis[0], max(fit.replicas) + 1
        labels = {
            rank: f"{'⚠ ' if rank in fit.stragglers else ''}{rank}  {host(replica['worker'])}"
            for rank, replica in fit.replicas.items()
            if n <= _NAMED
        }
        if axis.major_label_overrides != labels:
            axis.major_label_overrides = labels
        self._canvas.figure.y_range.update(start=n - 0.4, end=-0.6)
        self._canvas.say(None)

    def _bar(self, rank: int, replica: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        spent = replica["seconds"]
        whole = sum(spent.values())
        bar, left = [], 0.0
        for part, fields in PARTS.items():
            seconds = sum(spent[field] for field in fields)
            share = seconds / whole if whole else 0.0
            if share:
                bar.append(
                    (
                        rank, left, left + share, left + share / 2, self._palette.parts[part],
                        part, percent(share), percent(share) if share >= _WRITTEN else "",
                        duration(seconds), f"replica {rank} on {host(replica['worker'])}",
                    )
                )  # fmt: skip
            left += share
        return bar
