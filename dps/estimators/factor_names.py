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

    if inputs.held is not None:
        return _of_held(estimator, inputs)
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


def _of_held(estimator: Any, inputs: FactorInputs) -> Any:
    """The same of some rows of many: no name is made of those that are not there."""
    import pandas as pd

    columns = np.searchsorted(inputs.first_rows, inputs.held, side="right") - 1
    knots = inputs.held - inputs.first_rows[columns]
    if estimator.encoder_ is None and inputs.places is None:
        return pd.Index(columns)
    features = [] if estimator.encoder_ is None else estimator.encoder_.encode.features
    firsts = np.cumsum([0, *(feature.width for feature in features)])
    rows: list[tuple[Any, Any]] = []
    for column, knot in zip(columns.tolist(), knots.tolist(), strict=True):
        place = -1 if inputs.places is None else inputs.places[column]
        number, name, label = 0, column, column
        if features:
            number = int(np.searchsorted(firsts, column, side="right")) - 1
            name, label = _name(features[number]), column - int(firsts[number])
            if isinstance(features[number], OneHot):
                label = features[number].labels[label]
        rows.append((name, inputs.knots[place][knot] if place >= 0 else label))
    return _index(rows)


def _name(feature: Any) -> Any:
    name = getattr(feature, "name", None)
    if isinstance(feature, OneHot) or name is not None:
        return name
    return ":".join(map(str, feature.members))  # of an interaction


def _index(pairs: list[tuple[Any, Any]]) -> Any:
    import pandas as pd

    return pd.MultiIndex.from_tuples(pairs, names=["field", "category"])


def _of_frame(layout: Any) -> Iterator[tuple[Any, Any]]:
    for feature in layout.features:
        labels: list[Any] = feature.names()
        name = _name(feature)
        if isinstance(feature, OneHot):
            labels = feature.labels
        for label in labels:
            yield name, label
