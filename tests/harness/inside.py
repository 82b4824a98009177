"""The internals of estimators that tests look at, by one name each."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["carry_of", "params_of"]


def params_of(estimator: Any) -> NDArray[np.floating]:
    """The parameters that predictions are made of, (n,)."""
    params: NDArray[np.floating] = estimator._params
    return params


def carry_of(estimator: Any) -> Any:
    """The state that `partial_fit` goes on from, a `TrainState`."""
    return estimator._carry
