"""scikit-learn's callbacks (from 1.9 on), told of a fit's epochs as they are closed.

Without them in the installed scikit-learn, estimators have no `set_callbacks`, and nothing
here has an effect. It knows estimators by the fitted attributes it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from dps.training.history import EpochRecord

_Method = TypeVar("_Method", bound=Callable[..., Any])

#: Frames of the stack that :func:`with_callbacks` puts around a method.
FRAMES = 1

try:
    from sklearn.callback import CallbackSupportMixin
    from sklearn.callback import with_callbacks as _managed
except ImportError:  # scikit-learn before 1.9
    FRAMES = 0

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Nothing to support."""

    def _managed(method: Any) -> Any:
        return method


__all__ = ["FRAMES", "CallbackSupportMixin", "FitCallbacks", "with_callbacks"]


def with_callbacks(method: _Method) -> _Method:
    """Have callbacks torn down when the method of an estimator ends, in whatever way."""
    managed: _Method = _managed(method)
    return managed


class FitCallbacks:
    """The callbacks of one fit, whose task is `fit`, and of which each epoch is a subtask.

    Parameters
    ----------
    estimator : estimator
    X, y, sample_weight
        What it is fitted to, handed to callbacks that ask for it.
    max_iter : int
        Epochs at the most.
    """

    def __init__(self, estimator: Any, X: Any, y: Any, sample_weight: Any, max_iter: int) -> None:
        weights = None if sample_weight is None else {"sample_weight": sample_weight}
        self._given = {"estimator": estimator, "X": X, "y": y, "metadata": weights}
        self._context: Any = None
        if hasattr(estimator, "_skl_callbacks") or hasattr(estimator, "_parent_callback_ctx"):
            self._context = estimator._init_callback_context(max_subtasks=max_iter)
            self._context.call_on_fit_task_begin(**self._given)

    def __bool__(self) -> bool:
        return self._context is not None

    def epochs(
        self, records: Sequence[EpochRecord], fitted: Callable[[], dict[str, Any] | None]
    ) -> bool:
        """Tell of closed epochs; whether a callback asks the fit to stop.

        Parameters
        ----------
        records : sequence of EpochRecord
        fitted : callable
            Makes the fitted attributes after the last of them, or None where the fit, which
            does not wait, is further already.
        """
        stop = False
        for record in records:
            epoch = self._context.subcontext(task_name="epoch")
            epoch.call_on_fit_task_begin(**self._given)
            attributes = fitted if record is records[-1] else None
            stop |= epoch.call_on_fit_task_end(**self._given, reconstruction_attributes=attributes)
        return stop

    def end(self) -> None:
        """Tell that the estimator is fitted."""
        self._context.call_on_fit_task_end(**self._given, reconstruction_attributes={})
