"""Frequencies of labels, in a partition or in all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real

import numpy as np
from numpy.typing import NDArray

_COUNTED = 1 << 16  # range of integer labels up to which they are counted and not sorted
_LARGEST = 1 << 62
_PIECE_LABELS = 1 << 14  # labels that are counted at a time
_FEW = 16  # range of integers up to which each is compared


@dataclass(frozen=True)
class Labels:
    """The labels of some rows; empty for a regression.

    Examples
    --------
    >>> one, other = Labels.of(np.array([2, 1, 2])), Labels.of(np.array([3]), np.array([0.5]))
    >>> Labels.merge([one, other])
    Labels(classes=array([1, 2, 3]), rows=array([1., 2., 1.]), weights=array([1. , 2. , 0.5]))
    """

    classes: np.ndarray = field(default_factory=lambda: np.empty(0))  # (k,) sorted and distinct
    # (k,) rows of each class.
    rows: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    weights: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))

    @classmethod
    def of(cls, targets: np.ndarray, weights: np.ndarray | None = None) -> Labels:
        """Count labels, and add up their sample weights."""
        low, high = (0, _COUNTED) if targets.dtype.kind not in "biu" else _range(targets)
        if high - low < _COUNTED:  # counting small integers is faster than sorting
            rows, weighed = _by_code(targets, weights, low, high - low + 1)
            present = np.flatnonzero(rows)
            classes = (present + low).astype(targets.dtype)
            return cls(classes, rows[present], weighed[present])
        classes, codes = np.unique(targets, return_inverse=True)
        rows = weighed = np.bincount(codes, minlength=len(classes)).astype(np.float64)
        if weights is not None:
            found = np.bincount(codes, weights.astype(np.float64), len(classes))
            weighed = np.asarray(found, np.float64)
        return cls(classes, rows, weighed)

    @classmethod
    def merge(cls, parts: Sequence[Labels]) -> Labels:
        """Merge the labels of all parts."""
        classes = np.unique(np.concatenate([part.classes for part in parts]))
        rows, weights = np.zeros(len(classes)), np.zeros(len(classes))
        for part in parts:
            codes = np.searchsorted(classes, part.classes)
            rows[codes] += part.rows
            weights[codes] += part.weights
        return cls(classes, rows, weights)


def kind_of(labels: np.ndarray) -> str:
    """Return the kind of labels: "numbers", "strings", or objects of other types by name.

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
    """Raise unless labels in all places are of one kind.

    found: pairs of a place and its labels.
    name: what holds them.
    """
    kinds = [(place, kind_of(labels)) for place, labels in found if len(labels)]
    for place, kind in kinds[1:]:
        if kind != kinds[0][1]:
            raise ValueError(
                f"the labels of {name} differ in their type: {kinds[0][0]} holds {kinds[0][1]}, "
                f"{place} holds {kind}: give labels of one type"
            )


def _by_code(
    targets: np.ndarray, weights: np.ndarray | None, low: int, span: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return rows and weight of each integer from `low` on."""
    if weights is None and span <= _FEW:  # equal neighbours would wait for each other's counter
        rows = np.array([np.count_nonzero(targets == low + k) for k in range(span)], np.float64)
        return rows, rows
    rows = np.zeros(span)
    weighed = rows if weights is None else np.zeros(span)
    # Reusing memory is faster than allocating it.
    for start in range(0, len(targets), _PIECE_LABELS):
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
