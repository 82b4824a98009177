"""Differences between the supported versions of scikit-learn, 1.6 and newer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any, TypeVar

_Method = TypeVar("_Method", bound=Callable[..., Any])

__all__ = ["FRAMES", "CallbackSupportMixin", "metric_of", "with_callbacks"]

#: Number of stack frames that :func:`with_callbacks` adds to a method.
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
    """End callbacks when a method of an estimator ends, in any way."""
    return _managed(method)


def metric_of(name: str, options: Collection[str]) -> Callable[..., Any] | None:
    """Return scikit-learn's metric with these options; None if only a newer version has it.

    Brier scores of several classes need 1.7, `d2_brier_score` needs 1.8.
    """
    import sklearn.metrics

    metric: Callable[..., Any] | None = getattr(sklearn.metrics, name, None)
    known = inspect.signature(metric).parameters.keys() if metric else ()
    needed = {*options, *(["labels"] if name == "brier_score_loss" else [])}
    return metric if needed <= {*known} else None
