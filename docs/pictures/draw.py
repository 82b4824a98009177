"""Drawings of the pages, as SVG: client, replicas and shards; and a step of each mode.

    python docs/pictures/draw.py

A test compares the files with what this script makes.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent

#: What a replica does, and the colour of it.
COLOURS = {
    "compute": "#8ecae6",
    "local": "#b7d7a8",
    "sum": "#ffd166",
    "apply": "#f4a261",
    "read": "#cdb4db",
    "wait": "#e9ecef",
    "dropped": "#f5b7b1",
}
_UNIT, _ROW, _LEFT = 34, 34, 88  # pixels: of a unit of time, of a row, before the first bar

#: A bar: its kind, its end, and its label. It begins where the bar before it ends.
Bar = tuple[str, float, str]
#: By file: rows of bars, and where vertical lines stand at which all replicas meet.
STEPS: dict[str, tuple[dict[str, list[Bar]], list[float]]] = {
    "sync": (
        {
            "replica 0": [
                ("compute", 4, "compute g0"),
                ("wait", 7, ""),
                ("apply", 12, "mean, apply slice 0"),
                ("wait", 13, ""),
                ("read", 15, "read"),
                ("compute", 19, "compute g0"),
            ],
            "replica 1": [
                ("compute", 5.5, "compute g1"),
                ("wait", 7, ""),
                ("apply", 13, "mean, apply slice 1"),
                ("read", 15, "read"),
                ("compute", 19, "compute g1"),
            ],
            "replica 2": [
                ("compute", 7, "compute g2"),
                ("apply", 12.5, "mean, apply slice 2"),
                ("wait", 13, ""),
                ("read", 15, "read"),
                ("compute", 19, "compute g2"),
            ],
        },
        [7, 13],
    ),
    "backups": (
        {
            "replica 0": [
                ("compute", 4, "compute g0"),
                ("wait", 12, ""),
                ("read", 14, "read"),
                ("compute", 19, "compute g0"),
            ],
            "replica 1": [
                ("compute", 5.5, "compute g1"),
                ("apply", 12, "mean of g0 and g1, apply"),
                ("read", 14, "read"),
                ("compute", 19, "compute g1"),
            ],
            "replica 2": [
                ("compute", 12.5, "compute g2"),
                ("dropped", 15, "too late"),
                ("read", 17, "read"),
                ("compute", 19, ""),
            ],
        },
        [],
    ),
    "async": (
        {
            "replica 0": [
                ("compute", 4, "compute g0"),
                ("apply", 6.5, "apply g0"),
                ("read", 8, "read"),
                ("compute", 12, "compute g0"),
                ("apply", 14.5, "apply g0"),
                ("read", 16, "read"),
                ("compute", 19, "compute"),
            ],
            "replica 1": [
                ("compute", 9, "compute g1"),
                ("apply", 11.5, "apply g1"),
                ("read", 13, "read"),
                ("compute", 19, "compute g1"),
            ],
        },
        [],
    ),
    "bounded": (
        {
            "replica 0": [
                ("compute", 4, "step 6"),
                ("apply", 6, "apply"),
                ("wait", 11, "waits for clock 4"),
                ("read", 12.5, "read"),
                ("compute", 16.5, "step 7"),
                ("apply", 18.5, "apply"),
            ],
            "replica 1": [
                ("compute", 9, "step 4"),
                ("apply", 11, "apply"),
                ("read", 12.5, "read"),
                ("compute", 18.5, "step 5"),
            ],
        },
        [],
    ),
    "aggregate": (
        {
            "replica 0": [
                ("compute", 4, "compute g0"),
                ("sum", 5.5, "add"),
                ("read", 7, "read"),
                ("compute", 11, "compute g0"),
                ("sum", 12.5, "add"),
                ("read", 14, "read"),
                ("compute", 19, "compute g0"),
            ],
            "replica 1": [
                ("compute", 5.5, "compute g1"),
                ("sum", 7, "add"),
                ("apply", 10.5, "mean, apply"),
                ("read", 12, "read"),
                ("compute", 19, "compute g1"),
            ],
            "replica 2": [
                ("compute", 9, "compute g2"),
                ("wait", 10.5, ""),
                ("sum", 12, "add"),
                ("read", 13.5, "read"),
                ("compute", 19, "compute g2"),
            ],
        },
        [],
    ),
    "allreduce": (
        {
            "replica 0": [
                ("compute", 4, "compute g0"),
                ("wait", 7, ""),
                ("sum", 10, "mean, slice 0"),
                ("wait", 11, ""),
                ("apply", 14.5, "apply to copy 0"),
                ("compute", 19, "compute g0"),
            ],
            "replica 1": [
                ("compute", 5.5, "compute g1"),
                ("wait", 7, ""),
                ("sum", 11, "mean, slice 1"),
                ("apply", 14.5, "apply to copy 1"),
                ("compute", 19, "compute g1"),
            ],
            "replica 2": [
                ("compute", 7, "compute g2"),
                ("sum", 10.5, "mean, slice 2"),
                ("wait", 11, ""),
                ("apply", 14.5, "apply to copy 2"),
                ("compute", 19, "compute g2"),
            ],
        },
        [7, 11],
    ),
    "local": (
        {
            "replica 0": [
                ("local", 2, "step"),
                ("local", 4, "step"),
                ("local", 6, "step"),
                ("wait", 8, ""),
                ("sum", 12.5, "average, slice 0"),
                ("wait", 13, ""),
                ("read", 15, "read"),
                ("local", 17, "step"),
                ("local", 19, "step"),
            ],
            "replica 1": [
                ("local", 2.7, "step"),
                ("local", 5.4, "step"),
                ("local", 8, "step"),
                ("sum", 13, "average, slice 1"),
                ("read", 15, "read"),
                ("local", 17.7, "step"),
                ("local", 19, ""),
            ],
        },
        [8, 13],
    ),
    "hybrid": (
        {
            "replica 0": [
                ("compute", 4, "compute g0"),
                ("apply", 7, "its table rows"),
                ("wait", 8.5, ""),
                ("apply", 13, "dense slice 0"),
                ("wait", 13.5, ""),
                ("read", 15.5, "read"),
                ("compute", 19, "compute g0"),
            ],
            "replica 1": [
                ("compute", 5.5, "compute g1"),
                ("apply", 8.5, "its table rows"),
                ("apply", 13.5, "dense slice 1"),
                ("read", 15.5, "read"),
                ("compute", 19, "compute g1"),
            ],
        },
        [8.5, 13.5],
    ),
}


def step(rows: dict[str, list[Bar]], meetings: list[float]) -> str:
    """A step of a mode: a row a replica, time to the right."""
    width, height = _LEFT + 19 * _UNIT + 14, len(rows) * _ROW + 22
    return _svg(width, height, _step(rows, meetings, height))


def _step(rows: dict[str, list[Bar]], meetings: list[float], height: int) -> Iterator[str]:
    for number, (name, bars) in enumerate(rows.items()):
        top = 10 + number * _ROW
        yield _text(_LEFT - 10, top + 18, name, anchor="end")
        begin = 0.0
        for kind, end, label in bars:
            left, wide = _LEFT + begin * _UNIT, (end - begin) * _UNIT
            yield (
                f'<rect x="{left:g}" y="{top}" width="{wide - 1:g}" height="{_ROW - 8}" rx="3" '
                f'fill="{COLOURS[kind]}"/>'
            )
            if label:
                yield _text(left + wide / 2, top + 17.5, label, size=12)
            begin = end
    for at in meetings:
        x = _LEFT + at * _UNIT - 0.5
        yield (
            f'<line x1="{x:g}" y1="4" x2="{x:g}" y2="{height - 10}" stroke="#d62828" '
            'stroke-width="2" stroke-dasharray="5 3"/>'
        )


#: The boxes: place, size, colour, title and lines. A process has a solid line, what runs in it a
#: dashed one.
_BOXES = (
    (10, 75, 170, 120, "#eef6fb", "client", ("estimator.fit()", "plans, watches,", "collects")),
    (260, 10, 510, 150, "#eef6fb", "worker 1", ()),
    (275, 50, 190, 95, "#ffffff", "replica 0", ("gradients of", "the rows it holds")),
    (565, 50, 190, 95, "#fdf1e7", "shard, an Actor", ("parameters and", "optimizer state")),
    (260, 180, 220, 150, "#eef6fb", "worker 2", ()),
    (275, 220, 190, 95, "#ffffff", "replica 1", ("gradients of", "the rows it holds")),
)
_INSIDE = ("replica", "shard")
#: Arrows: from, to, and a label with its place.
_ARROWS = (
    ((180, 110), (258, 85), "tasks", (217, 88)),
    ((180, 160), (258, 245), "tasks", (205, 215)),
    ((465, 85), (563, 85), "push", (514, 77)),
    ((565, 110), (467, 110), "pull", (514, 127)),
    ((465, 255), (616, 147), "push", (502, 210)),
    ((648, 145), (467, 280), "pull", (602, 212)),
)


def boxes() -> str:
    """Client, workers with replicas, and a shard in one of them."""
    return _svg(780, 340, _boxes())


def _boxes() -> Iterator[str]:
    yield (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#495057"/></marker></defs>'
    )
    for x, y, wide, high, fill, title, lines in _BOXES:
        dashes = ' stroke-dasharray="5 3"' if title.startswith(_INSIDE) else ""
        yield (
            f'<rect x="{x}" y="{y}" width="{wide}" height="{high}" rx="8" fill="{fill}" '
            f'stroke="#495057"{dashes}/>'
        )
        yield _text(x + wide / 2, y + 24, title, size=15, weight="bold")
        for number, line in enumerate(lines):
            yield _text(x + wide / 2, y + 50 + 20 * number, line, size=14)
    for (x1, y1), (x2, y2), label, (x, y) in _ARROWS:
        yield (
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#495057" stroke-width="1.5" '
            'marker-end="url(#head)"/>'
        )
        yield _text(x, y, label, size=12)


def _text(
    x: float, y: float, said: str, *, anchor: str = "middle", size: int = 13, weight: str = "normal"
) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" '
        f'font-weight="{weight}">{escape(said)}</text>'
    )


def _svg(width: float, height: float, parts: Iterator[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" font-family="sans-serif" fill="#212529">'
    )
    ground = f'<rect width="{width:g}" height="{height:g}" rx="6" fill="#ffffff"/>'
    return "\n".join([head, ground, *parts, "</svg>"]) + "\n"


def drawn() -> dict[str, str]:
    """What each file holds."""
    return {
        "boxes.svg": boxes(),
        **{f"mode-{name}.svg": step(*parts) for name, parts in STEPS.items()},
    }


if __name__ == "__main__":
    for name, text in drawn().items():
        (HERE / name).write_text(text)
