"""All tasks of a fit belong to one of Dask's spans, which its dashboard can be asked for."""

from __future__ import annotations

from contextlib import AbstractContextManager

import dask
from distributed import span

__all__ = ["FitSpan"]


class FitSpan:
    """The span ``("dps", fit)``, inside of the user's own.

    Parameters
    ----------
    fit : str
        Id of the fit.
    """

    def __init__(self, fit: str) -> None:
        with span("dps", fit):
            self._annotation = dask.get_annotations()["span"]

    def __call__(self) -> AbstractContextManager[None]:
        """In its body tasks are made that belong to the fit."""
        entered: AbstractContextManager[None] = dask.annotate(span=self._annotation)
        return entered
