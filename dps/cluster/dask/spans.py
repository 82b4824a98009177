"""All tasks of fits belong to one of Dask's spans, which its dashboard can be asked for.

The scheduler and its workers remember every span, and figures of each, for as long as they live: so
there is one for all fits, and not one a fit.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import dask


class FitSpan:
    """The span ``("dps",)``, inside of the user's own."""

    def __init__(self) -> None:
        outer = dask.get_annotations().get("span") or {"name": (), "ids": ()}
        # Dask makes a new id each time that a span is entered; of one id there is one span.
        self._annotation = {
            "name": (*outer["name"], "dps"),
            "ids": (*outer["ids"], "-".join((*outer["ids"], "dps"))),
        }

    def __call__(self) -> AbstractContextManager[None]:
        """In its body tasks are made that belong to fits."""
        return dask.annotate(span=self._annotation)
