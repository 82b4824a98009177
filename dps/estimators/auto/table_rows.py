"""The rows of a factorization machine's table: their columns and names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dps.estimators.auto.constants import knots_of_constant
from dps.estimators.auto.epochs import numbers_of
from dps.estimators.fit.encoding import Encoding, coefficient_names, index_of
from dps.estimators.fit.survey import Survey
from dps.models.factorization import FactorInputs
from dps.preprocessing.features import OneHot

if TYPE_CHECKING:
    from dps.estimators.base.estimator import DistributedEstimator

#: Largest number of knots of a number, and least rows per knot.
_KNOTS, _ROWS_A_KNOT = 20, 50
#: Squared length of normalized rows.
_LENGTH = 6.0
#: Number of columns up to which each is a field.
_FIELDS = 64


def inputs_of(estimator: DistributedEstimator, survey: Survey) -> FactorInputs:
    """Return the input layer of a machine for the values of the columns."""
    summary, encoding = survey.summary, survey.encoding
    n, points, fields = summary.n_features, summary.points, estimator.fields
    numbers, of_frame = numbers_of(survey), None
    if encoding is not None:
        widths = [feature.width for feature in encoding.encoder._layout.features]
        of_frame = np.repeat(np.arange(len(widths)), widths)
    elif len(numbers) and n <= _FIELDS:
        of_frame = np.arange(n)
    known = of_frame if fields is None else _fields_given(fields, n, encoding)
    if points is None:
        normalised = estimator.normalize
        if normalised == "auto":
            normalised = estimator._classification
        length = 1.0 if normalised else summary.square / summary.total
        return FactorInputs(n, None, (), _int32(known), _gain(length), bool(normalised))
    # A column of zeros and ones only is a category.
    of_ones = [bool(np.isin(each.values, (0.0, 1.0)).all()) for each in points]
    goes_on = survey.partial or estimator.warm_start
    if goes_on:  # a column that is constant now may vary later
        of_ones = [one and len(each.values) > 1 for one, each in zip(of_ones, points, strict=True)]
    chosen = [not ones for ones in of_ones]
    numbers = numbers[chosen]
    ones = [each for each, one in zip(points, of_ones, strict=True) if one]
    kept = [each for each, one in zip(points, chosen, strict=True) if one]
    places = np.full(n, -1, np.int32)
    places[numbers] = np.arange(len(numbers))
    bins = int(np.clip(summary.total // _ROWS_A_KNOT, 2, _KNOTS))
    knots = tuple(np.unique(each.edges(bins)) for each in kept)
    if goes_on:
        knots = tuple(knots_of_constant(k[0]) if len(k) == 1 else k for k in knots)
    length = len(kept) + sum(float(each.values @ each.rows / each.rows.sum()) for each in ones)
    if encoding is not None:
        length = len(encoding.encoder._layout.members)
    normalised = estimator.normalize is True
    gain = _gain(1.0 if normalised else length)
    return FactorInputs(n, places if len(numbers) else None, knots, _int32(known), gain, normalised)


def _gain(square: float) -> float:
    """Return the factor that makes rows as long as a row with a few ones."""
    return float((_LENGTH / square) ** 0.5) if square > 0 else 1.0


def _int32(values: Any) -> Any:
    return None if values is None else np.asarray(values, np.int32)


def _fields_given(fields: Any, n: int, encoding: Encoding | None) -> NDArray[np.int64]:
    if encoding is not None:
        raise ValueError("the fields of an encoded dataframe are its columns: leave fields=None")
    given = np.asarray(fields)
    if given.shape != (n,) or given.dtype.kind not in "iu":
        raise ValueError(
            f"fields must be {n} whole numbers, one for each column of X; got an array of shape "
            f"{given.shape} of {given.dtype}"
        )
    return np.unique(given, return_inverse=True)[1].astype(np.int64)


def row_names(estimator: DistributedEstimator, inputs: FactorInputs) -> Any:
    """Return an index of the rows: (field, category), (feature, knot), or names of columns."""
    if inputs.held is not None:
        return _of_held(estimator, inputs)
    if estimator.encoder_ is None:
        names = [(name, name) for name in coefficient_names(estimator)]
    else:
        names = [*_of_frame(estimator.encoder_._layout)]
    if inputs.places is None:
        if estimator.encoder_ is None:
            return index_of(name for name, _ in names)
        return _index(names)
    rows: list[tuple[Any, Any]] = []
    for (field, label), place in zip(names, inputs.places, strict=True):
        rows += [(field, knot) for knot in inputs.knots[place]] if place >= 0 else [(field, label)]
    return _index(rows)


def _of_held(estimator: DistributedEstimator, inputs: FactorInputs) -> Any:
    """Return the same for some rows of many, without making the other names."""
    import pandas as pd

    assert inputs.held is not None
    columns = np.searchsorted(inputs.first_rows, inputs.held, side="right") - 1
    knots = inputs.held - inputs.first_rows[columns]
    if estimator.encoder_ is None and inputs.places is None:
        return pd.Index(columns)
    features = [] if estimator.encoder_ is None else estimator.encoder_._layout.features
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
    return ":".join(map(str, feature.members))  # an interaction


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
