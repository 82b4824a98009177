"""The common part of the page's plots: a figure in the page's colours, or a text."""

from __future__ import annotations

from typing import Any

from bokeh.layouts import column
from bokeh.models import ColumnDataSource, Div, InlineStyleSheet
from bokeh.plotting import figure

from dps.monitor.page.palette import Palette

_FONT = "Helvetica, Arial, sans-serif"
_NOTE = """
:host { color: var(--dps-faint); font: 14px/1.5 Helvetica, Arial, sans-serif; }
.bk-clearfix { height: 100%; }
.note { height: 100%; box-sizing: border-box; padding: 0 16px 32px; display: flex;
  align-items: center; justify-content: center; text-align: center; }
.note span { text-wrap: balance; max-width: 480px; }
.note b { color: var(--dps-text); }
"""


def div(css: str, name: str = "") -> Div:
    """Return HTML with a style sheet of its own."""
    fill = ".bk-clearfix { display: block; width: 100%; }"  # bokeh's own box shrinks to its content
    return Div(
        stylesheets=[InlineStyleSheet(css=css + fill)], sizing_mode="stretch_width", margin=0,
        name=name or None,
    )  # fmt: skip


def replace(source: ColumnDataSource, data: dict[str, list[Any]]) -> None:
    """Send new data to the browsers, if it is new."""
    if source.data != data:
        source.data = data


def write(place: Div, text: str) -> None:
    """Send new HTML to the browsers, if it is new."""
    if place.text != text:
        place.text = text


class Canvas:
    """A figure that a text replaces while there is nothing to draw.

    The text is set first, and the figure keeps its data: browsers receive one change at a time, and
    an emptied figure causes a message in their console.

    x, y: labels of the axes.
    """

    def __init__(self, name: str, palette: Palette, x: str, y: str, **options: object) -> None:
        self.figure = figure(
            **{
                "tools": "",
                "toolbar_location": None,
                "sizing_mode": "stretch_both",
                "min_height": 120,
                "x_axis_label": x,
                "y_axis_label": y,
                "outline_line_color": None,
                "background_fill_color": None,
                "border_fill_color": None,
                "min_border": 8,
                **options,
            }
        )
        for axis in self.figure.axis:
            axis.update(
                axis_line_color=palette.line,
                major_tick_line_color=None,
                minor_tick_line_color=None,
                major_label_text_color=palette.faint,
                major_label_text_font=_FONT,
                major_label_text_font_size="12px",
                axis_label_text_color=palette.faint,
                axis_label_text_font=_FONT,
                axis_label_text_font_size="12px",
                axis_label_text_font_style="normal",
            )
        for grid in self.figure.grid:
            grid.grid_line_color = palette.line
        self._note = div(_NOTE)
        self._note.sizing_mode = "stretch_both"
        # A figure without data has no ranges, which causes messages in the browser's console.
        self.root = column(self._note, sizing_mode="stretch_both", name=name)

    def legend(self, palette: Palette) -> None:
        """Style the glyphs' legend, and place it above the plot."""
        (legend,) = self.figure.legend
        self.figure.add_layout(legend, "above")
        legend.update(
            location="top_left",
            orientation="horizontal",
            background_fill_color=palette.card,
            background_fill_alpha=0.8,
            border_line_color=None,
            label_text_color=palette.text,
            label_text_font=_FONT,
            label_text_font_size="12px",
            label_standoff=6,
            glyph_height=14,
            spacing=8,
            padding=0,
            margin=4,
        )

    def show_text(self, words: str | None) -> None:
        """Show a text in place of the figure, or with None the figure."""
        shown = self.figure if words is None else self._note
        text = "" if words is None else f'<div class="note"><span>{words}</span></div>'
        write(self._note, text)
        if self.root.children != [shown]:
            self.root.children = [shown]
