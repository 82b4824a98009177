"""Whoever watches one fit from the caller's side: a bar, a log, scikit-learn's callbacks.

It passes closed epochs on to them and knows none of them well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dps.estimators.callbacks import FitCallbacks
from dps.estimators.progress import showing
from dps.estimators.publishing import Publisher
from dps.training.history import EpochRecord
from dps.training.job import Job, Trained

__all__ = ["Viewers"]


class Viewers:
    """The viewers of one fit.

    Parameters
    ----------
    estimator : estimator
        Its `verbose` and its callbacks count.
    X, y, sample_weight
        What it is fitted to.
    max_iter : int
        Epochs at the most.
    """

    def __init__(self, estimator: Any, X: Any, y: Any, sample_weight: Any, max_iter: int) -> None:
        self._verbose = int(estimator.verbose)
        self._max_iter = max_iter
        self._callbacks = FitCallbacks(estimator, X, y, sample_weight, max_iter)
        self._shown = contextlib.ExitStack()

    def watch(
        self,
        job: Job,
        fitted: Callable[[Trained, Sequence[EpochRecord]], dict[str, Any]],
        publisher: Publisher | None = None,
    ) -> Job:
        """The job, which tells the viewers of its epochs.

        Parameters
        ----------
        job : Job
        fitted : callable
            Makes the estimator's fitted attributes from the model's parameters and closed epochs.
        publisher : Publisher, optional
            Writes the model where others read it.
        """
        update = self._shown.enter_context(showing(self._verbose, self._max_iter))
        closed: list[EpochRecord] = []

        def on_epochs(records: Sequence[EpochRecord], params: Callable[[], Trained | None]) -> bool:
            def attributes() -> dict[str, Any] | None:
                found = params()
                return None if found is None else fitted(found, closed)

            closed.extend(records)
            update(records)
            if publisher is not None:
                publisher.epochs(closed, params)
            return bool(self._callbacks) and self._callbacks.epochs(records, attributes)

        watched = self._verbose or self._callbacks or publisher is not None
        return replace(job, on_epochs=on_epochs) if watched else job

    def end(self) -> None:
        """Tell that the estimator is fitted."""
        if self._callbacks:
            self._callbacks.end()

    def close(self) -> None:
        """Take away what is shown."""
        self._shown.close()
