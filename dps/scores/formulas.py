"""Formulas on NumPy arrays: numbers per row whose mean is a score, and moments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps.data.survey.spread import merged
from dps.losses.base import as_columns


def equal(y_true: np.ndarray, y_pred: np.ndarray) -> NDArray[np.bool_]:
    """True for each row with its label, or with all of its labels; (n,)."""
    same: Any = y_true == y_pred
    return same if same.ndim == 1 else same.all(axis=1)


def squared(y_true: np.ndarray, y_pred: np.ndarray) -> NDArray[np.float64]:
    """Squared errors, (n, n_outputs)."""
    return _errors(y_true, y_pred) ** 2


def absolute(y_true: np.ndarray, y_pred: np.ndarray) -> NDArray[np.float64]:
    """Absolute errors, (n, n_outputs)."""
    return np.abs(_errors(y_true, y_pred))


def negative_logs(chances: np.ndarray) -> np.ndarray:
    """Return minus the logarithms of probabilities, clipped as in scikit-learn."""
    least = np.finfo(chances.dtype).eps
    return -np.log(np.clip(chances, least, 1 - least))


def _errors(y_true: np.ndarray, y_pred: np.ndarray) -> NDArray[np.float64]:
    return as_columns(y_true.astype(np.float64)) - as_columns(y_pred.astype(np.float64))


def moments(
    y_true: np.ndarray, y_pred: np.ndarray, weight: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the sums over some rows for R2, (1 + 3 n_outputs,).

    The sum of weights; for each output the mean of y, its squared deviations, and squared errors.
    """
    y = as_columns(y_true.astype(np.float64))
    total = float(weight.sum())
    mean = weight @ y / total if total else np.zeros(y.shape[1])
    errors = weight @ squared(y_true, y_pred)
    return np.concatenate([[total], mean, weight @ (y - mean) ** 2, errors])


def joined(parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The moments of all rows."""
    table = np.stack(parts)
    totals, (means, squares, errors) = table[:, 0], np.split(table[:, 1:], 3, axis=1)
    total, variances = totals.sum(), squares / np.where(totals, totals, 1.0)[:, None]
    mean, variance = merged(zip(totals.tolist(), means, variances, strict=True))
    return np.concatenate([[total], mean, total * variance, errors.sum(axis=0)])


def r2(found: NDArray[np.float64], force_finite: bool = True) -> NDArray[np.float64]:
    """Return the coefficient of determination of each output; for a constant y scikit-learn's."""
    _, about, errors = np.split(found[1:], 3)
    if not force_finite:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(1.0 - errors / about)
    varying = about != 0
    constant = np.where(errors == 0, 1.0, 0.0)
    return np.where(varying, 1.0 - errors / np.where(varying, about, 1.0), constant)
