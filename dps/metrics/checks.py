"""Checks of targets and predictions per partition, as scikit-learn makes them for all rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

#: Raises unless predictions and targets of a partition suit a metric; takes its place, too.
Check = Callable[[np.ndarray, np.ndarray, str], None]


def of_labels(predicted: np.ndarray, y: np.ndarray, place: str) -> None:
    """Raise unless both are labels of one type."""
    kinds = [_kind_of(y, "y_true", place), _kind_of(predicted, "y_pred", place)]
    if kinds[0] != kinds[1]:
        raise ValueError(
            f"Mix of label input types: y_true{place} holds {kinds[0]}s, and y_pred {kinds[1]}s"
        )


def of_scores(predicted: np.ndarray, y: np.ndarray, place: str) -> None:
    """Raise unless y are labels, and predictions are numbers, not NaN."""
    _kind_of(y, "y_true", place)
    check_numbers(predicted, "y_pred", place, infinite=True)


def of_numbers(predicted: np.ndarray, y: np.ndarray, place: str) -> None:
    """Raise unless both are finite numbers."""
    check_numbers(y, "y_true", place)
    check_numbers(predicted, "y_pred", place)


def of_counts(predicted: np.ndarray, y: np.ndarray, place: str) -> None:
    """Raise unless no y is negative, and predictions are positive."""
    of_numbers(predicted, y, place)
    for name, values, low in ("y_true", y, y < 0), ("y_pred", predicted, predicted <= 0):
        if low.any():
            raise ValueError(f"{name}{place} has a {values[low][0]}, which the deviance excludes")


def of_logarithms(predicted: np.ndarray, y: np.ndarray, place: str) -> None:
    """Raise unless all y and predictions are above -1."""
    of_numbers(predicted, y, place)
    for name, values in ("y_true", y), ("y_pred", predicted):
        if (low := values <= -1).any():
            raise ValueError(f"{name}{place} has a {values[low][0]}: log(1 + y) needs more than -1")


def of_positive(predicted: np.ndarray, y: np.ndarray, place: str) -> None:
    """Raise unless all y and predictions are positive."""
    of_counts(predicted, y, place)
    if (y == 0).any():
        raise ValueError(f"y_true{place} has a 0, which the gamma deviance excludes")


def check_numbers(values: np.ndarray, name: str, place: str, infinite: bool = False) -> None:
    """Raise unless values are finite numbers.

    values: array.
    infinite: whether infinity is allowed.
    """
    if values.dtype == object:
        try:
            values = values.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name}{place} has a value that is no number: {error}") from error
    if values.dtype.kind not in "biuf":
        raise ValueError(f"{name}{place} has dtype {values.dtype}, numbers are wanted")
    if values.dtype.kind != "f":
        return
    bad = np.isnan(values) if infinite else ~np.isfinite(values)
    if bad.any():
        row = int(np.argmax(bad.reshape(len(values), -1).any(axis=1)))
        what = "NaN" if np.isnan(values[row]).any() else "infinity"
        raise ValueError(f"Input {name} contains {what}:{place}, in row {row}")


def _kind_of(labels: np.ndarray, name: str, place: str) -> str:
    """Return the kind of labels: "string", "number" or the name of another type."""
    kind = labels.dtype.kind
    if kind in "US":
        return "string"
    if kind in "biu":
        return "number"
    if kind == "f":
        check_numbers(labels, name, place)
        broken = (labels != np.floor(labels)).reshape(len(labels), -1).any(axis=1)
        if broken.any():
            row = int(broken.argmax())
            raise ValueError(
                f"continuous is not supported: {name}{place} holds {labels[row]}, in row {row}, "
                "which is no label"
            )
        return "number"
    import pandas as pd

    missing = pd.isna(labels).reshape(len(labels), -1).any(axis=1)
    if missing.any():
        row = int(missing.argmax())
        raise ValueError(f"Input {name} contains NaN:{place}, in row {row}")
    found = str(pd.api.types.infer_dtype(labels.ravel(), skipna=False))
    if found in ("integer", "boolean", "floating", "mixed-integer-float"):
        return "number"
    if found.startswith("mixed"):
        raise ValueError(f"{name}{place} holds labels of several types: give labels of one")
    return found
