"""The Dask span ``("dps",)`` of all tasks of fits, for queries on the dashboard.

Scheduler and workers keep every span with its metrics while they live, so all fits share one span.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import dask


class FitSpan:
    """The span ``("dps",)`` inside the user's own span."""

    def __init__(self) -> None:
        outer = dask.get_annotations().get("span") or {"name": (), "ids": ()}
        # Dask makes a new id each time a span is entered; a fixed id gives one span.
        self._annotation = {
            "name": (*outer["name"], "dps"),
            "ids": (*outer["ids"], "-".join((*outer["ids"], "dps"))),
        }

    def __call__(self) -> AbstractContextManager[None]:
        """Return a context in which new tasks belong to the span."""
        return dask.annotate(span=self._annotation)
