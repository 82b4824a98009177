"""The tables of docs/reference/events.md, made of the docstrings of the schema.

Run as a program it writes that part anew.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

from dps.monitor import events

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "events.md"
BEGIN = "<!-- Made of dps/monitor/events.py by tests/harness/event_tables.py. -->\n"
END = "<!-- The end of what is made. -->\n"
_NESTED = (
    events.ReplicaStart, events.ShardStart, events.ReplicaColumns,
    events.EpochFields,
)  # fmt: skip


def tables() -> str:
    """A table of its fields for each kind of event, and for what lists of them hold."""
    kinds = [(f"`{kind}`", getattr(events, f"{kind.capitalize()}Event")) for kind in events.KINDS]
    nested = [(f"`{cls.__name__}`", cls) for cls in _NESTED]
    every = ("Every event", events.Event)
    return "\n".join(_table(name, cls) for name, cls in (every, *kinds, *nested))


def _table(name: str, cls: Any) -> str:
    text = (inspect.getdoc(cls) or "").replace("``", "`")
    said, _, attributes = text.partition("\n\nAttributes\n----------\n")
    attributes, _, notes = attributes.partition("\n\nNotes\n-----\n")
    rows = [*_rows(attributes)]
    common = set() if cls is events.Event else {*events.Event.__annotations__}
    known = {field for fields, _, _ in rows for field in fields}
    missing = set(cls.__annotations__) - common - known
    if cls not in (events.ReplicaStart, events.ShardStart, events.EpochFields):
        assert not missing, f"the docstring of {cls.__name__} says nothing of {missing}"
    if not rows:  # its fields are said in a sentence
        rows = [([each], _type(cls, each), "") for each in cls.__annotations__]
    said = re.sub(r"\A`\w+`: (\w)", lambda match: match[1].upper(), said)
    lines = [
        f"## {name}\n",
        re.sub(r":\w+:`([^`]*)`", r"`\1`", "\n\n".join([said, notes])).strip(),
    ]
    lines += ["", "| field | type | |", "|---|---|---|"]
    lines += [
        f"| {', '.join(f'`{n}`' for n in fields)} | {kind} | {what} |"
        for fields, kind, what in rows
    ]
    return "\n".join(lines) + "\n"


def _rows(attributes: str) -> Iterator[tuple[list[str], str, str]]:
    """Fields, their type and what they are."""
    for entry in re.split(r"\n(?=\w)", attributes):
        first, *rest = entry.split("\n")
        names, colon, kind = first.partition(" : ")
        if colon:
            what = " ".join(line.strip() for line in rest).strip()
            yield names.split(", "), kind, re.sub(r":\w+:`([^`]*)`", r"`\1`", what)


def _type(cls: Any, field: str) -> str:
    hint = get_type_hints(cls)[field]
    said = str(hint) if " | " in str(hint) else getattr(hint, "__name__", str(hint))
    return said.replace(" | ", " or ").replace("NoneType", "None")


def written() -> str:
    """The page with that part as the schema has it."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written())
