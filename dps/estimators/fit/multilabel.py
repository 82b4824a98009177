"""Targets with several columns of labels: names of the labels, and the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dps.losses import Loss
from dps.losses.classification import MarginLoss, Multilabel

if TYPE_CHECKING:
    from dps.estimators.base.trainable import Trainable


def labels_of_columns(
    estimator: Trainable, loss: Loss, n_columns: int, classes: np.ndarray | None
) -> tuple[np.ndarray, Loss]:
    """Return the labels of a y with several columns, which are numbers, and the loss."""
    check_columns_of_labels(estimator, classes, several=True)
    numbers = np.arange(n_columns)
    if classes is not None and not np.array_equal(classes, numbers):
        raise ValueError(
            f"y has {n_columns} columns, one a label, and `classes` are "
            f"{np.asarray(classes).tolist()}: give classes=range({n_columns})"
        )
    if estimator.class_weight is not None:
        raise ValueError(
            f"class_weight={estimator.class_weight!r} needs labels in one column, and y has "
            f"{n_columns}: give sample_weight"
        )
    if not isinstance(loss, MarginLoss) or loss.native is None:
        raise ValueError(
            f"y has {n_columns} columns of labels, which take a binary loss of dps for each, and "
            f"{loss!r} is none: fit a model to each"
        )
    return numbers, Multilabel(loss)


def check_columns_of_labels(
    estimator: Trainable, classes: np.ndarray | None, several: bool
) -> None:
    """Raise if training continues from labels of another kind."""
    before = getattr(estimator, "multilabel_", several)
    if classes is not None and hasattr(estimator, "_carry") and before != several:
        kinds = {False: "one column of labels", True: "a column for each label"}
        raise ValueError(
            f"y has {kinds[several]}, and had {kinds[before]} in the fit before: train a clone"
        )
