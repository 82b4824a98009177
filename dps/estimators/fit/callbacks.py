"""Observers of a fit on the client: a bar, a log, a server, and scikit-learn's callbacks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dps.estimators.fit.progress import showing

if TYPE_CHECKING:
    from dps.estimators.base.trainable import Trainable
    from dps.estimators.served.publish import Publisher
    from dps.training.epochs.records import EpochRecord
    from dps.training.job import Job
    from dps.training.state import Snapshot


class FitCallbacks:
    """Calls callbacks for one fit: the fit is a task, and each epoch a subtask.

    estimator: has `verbose` and the callbacks.
    X, y, sample_weight: training data for callbacks that request it.
    max_iter: largest number of epochs.
    """

    def __init__(
        self, estimator: Trainable, X: Any, y: Any, sample_weight: Any, max_iter: int
    ) -> None:
        weights = None if sample_weight is None else {"sample_weight": sample_weight}
        self._given = {"estimator": estimator, "X": X, "y": y, "metadata": weights}
        self._context: Any = None
        self._verbose, self._max_iter = int(estimator.verbose), max_iter
        self._shown = contextlib.ExitStack()
        if hasattr(estimator, "_skl_callbacks") or hasattr(estimator, "_parent_callback_ctx"):
            self._context = estimator._init_callback_context(max_subtasks=max_iter)
            self._context.call_on_fit_task_begin(**self._given)

    def watch(
        self,
        job: Job,
        fitted: Callable[[Snapshot, Sequence[EpochRecord]], dict[str, Any]],
        publisher: Publisher | None = None,
    ) -> Job:
        """Return the job with a report of closed epochs.

        fitted: makes the estimator's fitted attributes from the model's parameters and closed
            epochs.
        publisher: writes the model to a server.
        """
        update = self._shown.enter_context(showing(self._verbose, self._max_iter))
        closed: list[EpochRecord] = []

        def on_epochs(
            records: Sequence[EpochRecord], params: Callable[[], Snapshot | None]
        ) -> bool:
            def attributes() -> dict[str, Any] | None:
                found = params()  # None if the fit, which does not wait, is further already
                return None if found is None else fitted(found, closed)

            closed.extend(records)
            update(records)
            if publisher is not None:
                publisher.epochs(closed, params)
            return self._context is not None and self._call(records, attributes)

        watched = self._verbose or self._context is not None or publisher is not None
        return replace(job, on_epochs=on_epochs) if watched else job

    def _call(
        self, records: Sequence[EpochRecord], fitted: Callable[[], dict[str, Any] | None]
    ) -> bool:
        """Call callbacks for closed epochs; True if one of them stops the fit."""
        stop = False
        for record in records:
            epoch = self._context.subcontext(task_name="epoch")
            epoch.call_on_fit_task_begin(**self._given)
            attributes = fitted if record is records[-1] else None
            stop |= epoch.call_on_fit_task_end(**self._given, reconstruction_attributes=attributes)
        return stop

    def end(self) -> None:
        """Report that the estimator is fitted."""
        if self._context is not None:
            self._context.call_on_fit_task_end(**self._given, reconstruction_attributes={})

    def close(self) -> None:
        """Remove the bar and the handler of the log."""
        self._shown.close()
