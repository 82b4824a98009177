"""Colours of the page, in light and dark, for bokeh and for HTML.

The hues can be told apart with red-green colour blindness.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Palette:
    """One look of the page."""

    name: str  # ``"light"`` or ``"dark"``
    page: str  # colours of the page, cards, lines, text, and secondary text
    card: str
    line: str
    text: str
    faint: str
    curves: tuple[str, ...]  # colours of fits and of replicas
    parts: dict[str, str]  # colours of phases
    good: str  # colours of states
    warn: str
    bad: str
    heat: tuple[str, ...]  # from low to high

    def css(self) -> str:
        """Custom properties of CSS."""
        names = ("page", "card", "line", "text", "faint", "good", "warn", "bad")
        values = {name: getattr(self, name) for name in names}
        values["accent"] = self.curves[0]
        values.update({f"part-{name}": color for name, color in self.parts.items()})
        return "".join(f"--dps-{name}:{value};" for name, value in values.items())


LIGHT = Palette(
    name="light",
    page="#f6f7f9",
    card="#ffffff",
    line="#e3e6eb",
    text="#1f2733",
    faint="#69748a",
    curves=(
        "#1b6ac9", "#e07a1f", "#0b8f6f", "#b4489a", "#7a5af0", "#c9a20c", "#4aa3c7", "#8c5a3c",
    ),
    parts={
        "compute": "#1f9d83", "communicate": "#e3b23c", "wait": "#e2654a", "load": "#8aa0bd",
    },
    good="#0b8f6f",
    warn="#b36b00",
    bad="#c8372d",
    heat=("#f2f6fb", "#cfe0f3", "#9cc3e6", "#5f9fd6", "#2f77bd", "#1a5296", "#12336b"),
)  # fmt: skip

DARK = Palette(
    name="dark",
    page="#12161c",
    card="#1a2029",
    line="#2c3542",
    text="#e6eaf0",
    faint="#93a0b4",
    curves=(
        "#5aa2f5", "#f39a4a", "#3fc7a2", "#dd82c6", "#a58df7", "#e3c34a", "#7ac6e3", "#c99672",
    ),
    parts={
        "compute": "#35b89b", "communicate": "#e8c15c", "wait": "#ee7b61", "load": "#71869f",
    },
    good="#3fc7a2",
    warn="#f0b04d",
    bad="#f2766a",
    heat=("#1d2733", "#203a55", "#24527c", "#2c6ea8", "#4690cf", "#7cb5e6", "#bddcf7"),
)  # fmt: skip
