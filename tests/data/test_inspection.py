"""A look at a partition finds rows, classes and defects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dps.data.survey.rows import inspect_partition

LABELS = {
    "bool": np.array([True, False, True]),
    "int8": np.array([-128, 127, 0, 127], np.int8),
    "uint8": np.array([255, 0, 255], np.uint8),
    "far apart": np.array([-(2**40), 2**40, 7, 7]),
    "far from zero": np.array([10**15 + 3, 10**15, 10**15 + 3]),
    "uint64": np.array([2**64 - 1, 2**64 - 3, 2**64 - 1], np.uint64),
    "int64": np.array([-(2**63), -(2**63) + 1]),
    "float": np.array([2.0, -1.0, 2.0]),
    "str": np.array(["b", "a", "b"]),
    "object": np.array(["b", "a", "b"], object),
    "none": np.array([], np.int64),
}


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("name", LABELS)
def test_labels_of_every_kind_are_counted(name: str, weighted: bool) -> None:
    y: Any = LABELS[name]
    weight = np.arange(1.0, len(y) + 1) if weighted else None
    found = inspect_partition(np.zeros((len(y), 1)), y, weight, classification=True)
    assert found.defect is None
    labels = found.labels
    assert labels.classes.dtype == y.dtype
    assert labels.classes.tolist() == sorted(set(y.tolist()))
    for label, rows, total in zip(labels.classes, labels.rows, labels.weights, strict=True):
        assert rows == (y == label).sum()
        assert total == (rows if weight is None else weight[y == label].sum())
