"""How often labels occur in a partition, and in all of them."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real

import numpy as np
from numpy.typing import NDArray

#: Sorted distinct labels, and the rows and the weight of each.
Counts = tuple[np.ndarray, NDArray[np.float64], NDArray[np.float64]]

_COUNTED = 1 << 16  # span of integer labels up to which they are counted rather than sorted
_LARGEST = 1 << 62
_PIECE_LABELS = 1 << 14  # labels that are counted at once
_FEW = 16  # distinct integers up to which each is looked for


def kind_of(labels: np.ndarray) -> str:
    """What labels are: "numbers", "strings", or objects of other types by name.

    Examples
    --------
    >>> kind_of(np.array([True, False])), kind_of(np.array(["a"], object))
    ('numbers', 'strings')
    """
    kind = labels.dtype.kind
    if kind != "O":
        known = {"U": "strings", "S": "bytes", "M": "dates", "m": "durations"}
        return "numbers" if kind in "biuf" else known.get(kind, str(labels.dtype))
    found = sorted({_type_of(label) for label in labels.ravel()})
    return " and ".join(found) or "numbers"


def _type_of(label: object) -> str:
    if isinstance(label, bool | np.bool_ | Real):
        return "numbers"
    return "strings" if isinstance(label, str) else type(label).__name__


def check_kinds(found: Sequence[tuple[str, np.ndarray]], name: str = "y") -> None:
    """Raise unless labels of all places are of one kind.

    found: sequence of (str, array), places, and the labels there.
    name: what holds them.
    """
    kinds = [(place, kind_of(labels)) for place, labels in found if len(labels)]
    for place, kind in kinds[1:]:
        if kind != kinds[0][1]:
            raise ValueError(
                f"the labels of {name} differ in their type: {kinds[0][0]} holds {kinds[0][1]}, "
                f"{place} holds {kind}: give labels of one type"
            )


def count_labels(targets: np.ndarray, weights: np.ndarray | None) -> Counts:
    """Sorted distinct labels, and the rows and the weight of each."""
    low, high = (0, _COUNTED) if targets.dtype.kind not in "biu" else _range(targets)
    if high - low < _COUNTED:  # small integers are counted, which is faster than sorting them
        rows, weighed = _by_code(targets, weights, low, high - low + 1)
        present = np.flatnonzero(rows)
        classes = (present + low).astype(targets.dtype)
        return classes, rows[present], weighed[present]
    classes, codes = np.unique(targets, return_inverse=True)
    rows = np.bincount(codes, minlength=len(classes)).astype(np.float64)
    if weights is None:
        return classes, rows, rows
    weighed = np.asarray(np.bincount(codes, weights.astype(np.float64), len(classes)), np.float64)
    return classes, rows, weighed


def _by_code(
    targets: np.ndarray, weights: np.ndarray | None, low: int, span: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rows and weight of each integer from `low`."""
    if weights is None and span <= _FEW:  # equal neighbours would wait for each other's count
        rows = np.array([np.count_nonzero(targets == low + k) for k in range(span)], np.float64)
        return rows, rows
    rows = np.zeros(span)
    weighed = rows if weights is None else np.zeros(span)
    for start in range(0, len(targets), _PIECE_LABELS):  # memory that is fresh each time costs more
        at = slice(start, start + _PIECE_LABELS)
        codes = targets[at].astype(np.int64)
        codes -= low
        rows += np.bincount(codes, minlength=span)
        if weights is not None:
            weighed += np.bincount(codes, weights[at].astype(np.float64), span)
    return rows, weighed


def _range(targets: np.ndarray) -> tuple[int, int]:
    if not len(targets):
        return 0, _COUNTED
    low, high = int(targets.min()), int(targets.max())
    return (low, high) if low > -_LARGEST and high < _LARGEST else (0, _COUNTED)


def combine_counts(counts: Sequence[Counts]) -> Counts:
    """The counts of several partitions together."""
    classes = np.unique(np.concatenate([labels for labels, _, _ in counts]))
    rows, weights = np.zeros(len(classes)), np.zeros(len(classes))
    for labels, of_rows, of_weights in counts:
        codes = np.searchsorted(classes, labels)
        rows[codes] += of_rows
        weights[codes] += of_weights
    return classes, rows, weights
