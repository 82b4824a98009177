"""Predictions of folds with the columns of all classes, also if a model lacks some.

A missing class gets scikit-learn's default values.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps._warned import warn
from dps.data.collections.parts import Parts, blocks_of, frame_of

_METHODS = ("predict_proba", "predict_log_proba", "decision_function")


def in_all_columns(predicted: Sequence[Any], models: Sequence[Any], method: str) -> list[Any]:
    """Return lazy predictions of several folds, with a column for each class of any model.

    Raises ValueError: a model has two classes only, so its decision function has no columns.
    """
    known: list[Any] = [getattr(model, "classes_", None) for model in models]
    of_columns = method in _METHODS and not getattr(models[0], "multilabel_", False)
    if not of_columns or any(classes is None for classes in known):
        return list(predicted)
    every = np.unique(np.concatenate(known))
    return [
        made if len(classes) == len(every) else _spread(made, classes, every, method)
        for made, classes in zip(predicted, known, strict=True)
    ]


def _spread(made: Any, classes: np.ndarray, every: np.ndarray, method: str) -> Any:
    remedy = "To fix this, use a cross-validation technique resulting in properly stratified folds"
    if method == "decision_function" and len(classes) < 3:
        raise ValueError(
            f"Only {len(classes)} classes in training fold, but {len(every)} in overall dataset: "
            f"their decision_function has no column for each. {remedy}"
        )
    warn(
        f"Number of classes in training fold ({len(classes)}) does not match total number of "
        f"classes ({len(every)}). Results may not be appropriate for your use case. {remedy}",
        RuntimeWarning,
        stacklevel=4,
    )
    change = partial(_in_columns, np.searchsorted(every, classes), every, method)
    parts = Parts(made)
    cut = parts.map(change)
    if parts.is_list:
        return cut
    if parts.is_frame:
        return frame_of(cut, change(made._meta), made.divisions)
    meta = np.empty((0, len(every)), made.dtype)
    return blocks_of(cut, parts.lengths, (len(every),), made.dtype, meta)


def _in_columns(places: NDArray[np.intp], names: np.ndarray, method: str, part: Any) -> Any:
    values = np.asarray(part)
    least = 0 if method == "predict_proba" else np.finfo(values.dtype).min
    wide = np.full((len(values), len(names)), least, values.dtype)
    wide[:, places] = values
    if not hasattr(part, "iloc"):
        return wide
    import pandas as pd

    return pd.DataFrame(wide, index=part.index, columns=names)
