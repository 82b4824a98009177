"""What the rows of a factorization machine's table stand for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dps.estimators.encoding import coefficient_names
from dps.models import FactorInputs
from dps.preprocessing.features import OneHot

__all__ = ["row_names"]


def row_names(estimator: Any, inputs: FactorInputs) -> Any:
    """An index of the rows: (field, category), (feature, knot), or names of columns."""
    import pandas as pd

    if estimator.encoder_ is None:
        names = [(name, name) for name in coefficient_names(estimator)]
    else:
        names = [*_of_frame(estimator.encoder_.encode)]
    if inputs.places is None:
        if estimator.encoder_ is None:
            return pd.Index([name for name, _ in names])
        return _index(names)
    rows: list[tuple[Any, Any]] = []
    for (field, label), place in zip(names, inputs.places, strict=True):
        rows += [(field, knot) for knot in inputs.knots[place]] if place >= 0 else [(field, label)]
    return _index(rows)


def _index(pairs: list[tuple[Any, Any]]) -> Any:
    import pandas as pd

    return pd.MultiIndex.from_tuples(pairs, names=["field", "category"])


def _of_frame(layout: Any) -> Iterator[tuple[Any, Any]]:
    for feature in layout.features:
        labels: list[Any] = feature.names()
        name = getattr(feature, "name", None)
        if isinstance(feature, OneHot):
            labels = [*feature.categories, *[np.nan] * feature.indicator]
        elif name is None:  # of an interaction
            name = ":".join(map(str, feature.members))
        for label in labels:
            yield name, label
