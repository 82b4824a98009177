"""Differences between the versions of scikit-learn that dps works with, 1.6 and newer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any, TypeVar

_Method = TypeVar("_Method", bound=Callable[..., Any])

__all__ = ["FRAMES", "CallbackSupportMixin", "metric_of", "with_callbacks"]

#: Frames of the stack that :func:`with_callbacks` puts around a method.
FRAMES = 1

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks as _managed
except ImportError:  # 1.6 to 1.8: estimators have no `set_callbacks`
    FRAMES = 0

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Nothing to support."""

    def _managed(method: Any) -> Any:
        return method


def with_callbacks(method: _Method) -> _Method:
    """Have callbacks torn down when the method of an estimator ends, in whatever way."""
    return _managed(method)


def metric_of(name: str, options: Collection[str]) -> Callable[..., Any] | None:
    """The metric of scikit-learn with these options; None if only a newer version has it.

    Brier scores of several classes came with 1.7, `d2_brier_score` with 1.8.
    """
    import sklearn.metrics

    metric: Callable[..., Any] | None = getattr(sklearn.metrics, name, None)
    known = inspect.signature(metric).parameters.keys() if metric else ()
    needed = {*options, *(["labels"] if name == "brier_score_loss" else [])}
    return metric if needed <= {*known} else None
