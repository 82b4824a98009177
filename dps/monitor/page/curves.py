"""Curves over time: losses of fits, and the speed of each replica."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bokeh.models import ColumnDataSource, CustomJSTickFormatter, DataRange1d, HoverTool, Range1d

from dps.monitor.page.canvas import Canvas, replace
from dps.monitor.page.palette import Palette
from dps.monitor.page.view import View
from dps.monitor.scheduler.store import Fit
from dps.monitor.words import count, loss

#: x, y, colour, name; for a mark x, y, fill, colour, name, figure, description.
Curve = tuple[list[float], list[float], str, str]
Mark = tuple[float, float, str, str, str, str, str]

#: Largest number of points of a curve with marks.
_MARKED = 60
#: Number of losses from which outliers are recognised.
_MANY = 12
#: Replicas with a curve; if there are more, as many are drawn, slow ones included.
_DRAWN = 24
#: Replicas in the legend.
_NAMED = 8
#: Figures at an axis, like those of :func:`dps.monitor.words.count`.
_SHORT = """
const units = ["", "k", "M", "G", "T"]
let [value, unit] = [tick, 0]
while (Math.abs(value) >= 1000 && unit < 4) { value /= 1000; unit += 1 }
return parseFloat(value.toPrecision(4)) + units[unit]
"""


class Losses:
    """Training and validation loss by epoch, for several fits."""

    def __init__(self, palette: Palette) -> None:
        self._palette = palette
        self._canvas = canvas = Canvas("loss", palette, "epoch", "loss", y_range=Range1d(0, 1))
        self._marks = ColumnDataSource(
            {name: [] for name in ("x", "y", "fill", "color", "name", "loss", "what")}
        )
        drawn = canvas.figure
        self._earlier, self._training, self._held_out = (
            ColumnDataSource({name: [] for name in ("x", "y", "color", "name")}) for _ in range(3)
        )
        drawn.multi_line(
            "x", "y", source=self._earlier, line_color="color", line_alpha=0.35, line_width=1.5
        )
        training = drawn.multi_line(
            "x", "y", source=self._training, line_color="color", line_width=2.5,
            legend_field="name",
        )  # fmt: skip
        drawn.multi_line(
            "x", "y", source=self._held_out, line_color="color", line_width=2, line_dash=[6, 4]
        )
        marks = drawn.scatter(
            "x", "y", source=self._marks, size=7, fill_color="fill", line_color="color",
            line_width=1.5,
        )  # fmt: skip
        drawn.add_tools(
            HoverTool(
                renderers=[marks],
                tooltips=[("", "@name"), ("epoch", "@x{0.[00]}"), ("@what", "@loss")],
            )
        )
        canvas.legend(palette)
        drawn.xaxis.ticker.min_interval = 1
        # Faint fits, drawn for comparison, must not determine the range.
        drawn.x_range.renderers = [training, marks]
        self.root = canvas.root

    def update(self, view: View) -> None:
        """Draw the chosen fits, and faintly behind them earlier ones."""
        earlier = [
            (*fit.losses.columns()[:2], self._palette.faint, "earlier fits")
            for fit in view.others
            if len(fit.losses)
        ]
        training: list[Curve] = []
        held_out: list[Curve] = []
        marks: list[Mark] = []
        for number, fit in enumerate(view.fits):
            color = self._palette.curves[number % len(self._palette.curves)]
            self._draw(fit, color, training, held_out, marks)
        values = [value for curve in training + held_out for value in curve[1]]
        values += [mark[1] for mark in marks]
        if not values:
            self._canvas.show_text(_no_losses(view.focus))
            return
        for source, rows in (
            (self._earlier, earlier), (self._training, training), (self._held_out, held_out),
            (self._marks, marks),
        ):  # fmt: skip
            names = list(source.data)
            replace(source, {name: [row[i] for row in rows] for i, name in enumerate(names)})
        low, high = span(values)
        self._canvas.figure.y_range.update(start=low, end=high)
        self._canvas.show_text(None)

    def _draw(
        self,
        fit: Fit,
        color: str,
        training: list[Curve],
        held_out: list[Curve],
        marks: list[Mark],
    ) -> None:
        if len(fit.losses):
            x, y, validation = fit.losses.columns()
            training.append((x, y, color, fit.name))
            points = [(x, y, "training loss")]
            if not all(map(math.isnan, validation)):
                held_out.append((x, validation, color, fit.name))
                points.append((x, validation, "held-out loss"))
            for xs, ys, what in points:
                for at, value in list(zip(xs, ys, strict=True))[-1 if len(xs) > _MARKED else 0 :]:
                    marks.append((at, value, color, color, fit.name, loss(value), what))
        if fit.loss_now is not None:
            at, value = fit.loss_now
            card = self._palette.card
            marks.append((at, value, card, color, fit.name, loss(value), "loss so far"))


def span(losses: Sequence[float]) -> tuple[float, float]:
    """Return the range that shows curves of losses best.

    The first epochs may be far above all others and would flatten the rest, so they may leave the
    picture.

    Examples
    --------
    >>> span([1.0, 0.5]), span([9.0, *[0.5, 0.6] * 10])
    ((0.475, 1.025), (0.49, 0.71))
    """
    known = sorted(value for value in losses if math.isfinite(value))
    if not known:
        return 0.0, 1.0
    low, high = known[0], known[-1]
    most = known[int(0.9 * (len(known) - 1))]
    if len(known) >= _MANY and high - low > 3 * (most - low) > 0:
        high = low + 2 * (most - low)
    margin = 0.05 * (high - low) or 0.05 * abs(low) or 1.0
    return low - margin, high + margin


def _no_losses(fit: Fit | None) -> str:
    if fit is None:
        return "The curves of losses will be here."
    return "No epoch has been closed yet."


class Rates:
    """Rows per second of each replica of one fit."""

    def __init__(self, palette: Palette) -> None:
        self._palette = palette
        self._canvas = canvas = Canvas(
            "rates", palette, "seconds", "rows/s", y_range=DataRange1d(start=0)
        )
        self._source = ColumnDataSource({name: [] for name in ("x", "y", "color", "width", "name")})
        self._ends = ColumnDataSource({name: [] for name in ("x", "y", "color", "name", "rate")})
        canvas.figure.multi_line(
            "x", "y", source=self._source, line_color="color", line_width="width",
            legend_field="name",
        )  # fmt: skip
        ends = canvas.figure.scatter(
            "x", "y", source=self._ends, size=7, fill_color="color", line_color="color"
        )
        canvas.figure.add_tools(
            HoverTool(renderers=[ends], tooltips=[("", "@name"), ("rows/s", "@rate")])
        )
        canvas.figure.yaxis.formatter = CustomJSTickFormatter(code=_SHORT)
        canvas.legend(palette)
        self.root = canvas.root

    def update(self, view: View) -> None:
        """Draw the replicas of the fit in focus."""
        fit = view.focus
        if fit is None or len(fit.rates) < 2:
            self._canvas.show_text(_no_rates(fit))
            return
        seconds, *rates = fit.rates.columns()
        ranks = _drawn(fit, len(rates))
        colors = self._palette.curves
        lines = [
            (
                seconds,
                rates[rank],
                self._palette.warn if rank in fit.stragglers else colors[rank % len(colors)],
                3.0 if rank in fit.stragglers else 2.0,
                _name(fit, rank, len(ranks)),
            )
            for rank in ranks
        ]
        replace(
            self._source,
            {name: [line[i] for line in lines] for i, name in enumerate(self._source.data)},
        )
        replace(
            self._ends,
            {
                "x": [seconds[-1]] * len(ranks),
                "y": [rates[rank][-1] for rank in ranks],
                "color": [line[2] for line in lines],
                "name": [f"replica {rank}" for rank in ranks],
                "rate": [count(rates[rank][-1]) for rank in ranks],
            },
        )
        self._canvas.show_text(None)


def _drawn(fit: Fit, n_ranks: int) -> list[int]:
    if n_ranks <= _DRAWN:
        return list(range(n_ranks))
    spread = [round(i * (n_ranks - 1) / (_DRAWN - 1)) for i in range(_DRAWN)]
    return sorted({*spread, *(rank for rank in fit.stragglers if rank < n_ranks)})


def _name(fit: Fit, rank: int, drawn: int) -> str:
    if rank in fit.stragglers:
        return f"replica {rank}, slow"
    return f"replica {rank}" if drawn <= _NAMED else "replicas"


def _no_rates(fit: Fit | None) -> str:
    if fit is None:
        return "The speed of each replica will be here."
    if fit.running:
        return "Replicas have not said how fast they are yet."
    return (
        "The fit was over before its speed could be followed: "
        f"<b>{count(fit.rows_per_second)} rows/s</b> in its last epoch."
    )
