"""A fitted `FrameEncoder` as scikit-learn's `ColumnTransformer`, with one step per column.

This covers numbers, with a mean and an indicator for missing ones, and categories with one column
each. scikit-learn has no equivalent of buckets, infrequent categories, lists, parts of dates and
interactions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dps.data.survey.defects import places
from dps.preprocessing import FrameEncoder
from dps.preprocessing.features import Number, OneHot

#: Replaces missing numbers; larger than any number, also in float32.
_FAR = 1e38


def plain_encoder(encoder: FrameEncoder) -> Any:
    """Return a fitted scikit-learn transformer that makes the same columns, or None."""
    layout = encoder._layout
    features = layout.features
    names = [getattr(feature, "name", None) for feature in features]
    # A number would mean a position; scikit-learn cuts off trailing zero bytes.
    texts = all(isinstance(name, str) and not name.endswith("\0") for name in names)
    if not texts or names != list(layout.columns) or not all(map(_is_plain, features)):
        return None
    import pandas as pd
    from sklearn.compose import ColumnTransformer

    # Fitted to two rows, from which each step learns what the encoder knows.
    values = dict(zip(names, map(_values, features), strict=True))
    example: Any = pd.DataFrame(
        {name: pd.Series(each, dtype=each.dtype) for name, each in values.items()}
    )
    columns: list[Any] = names
    if names == places(len(names)) and all(isinstance(each, Number) for each in features):
        example, columns = example.to_numpy(), list(range(len(names)))
    steps = [
        (f"{number}{what}", step, [column])
        for number, (feature, column) in enumerate(zip(features, columns, strict=True))
        for what, step in _steps(feature, encoder.missing == "mean").items()
    ]
    # The next step takes arrays, whatever the configuration asks for.
    return ColumnTransformer(steps).set_output(transform="default").fit(example)


def onnx_types(encoder: FrameEncoder) -> list[tuple[str, Any]]:
    """Names and types of the columns of a fitted encoder, for skl2onnx."""
    from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType

    features: tuple[Any, ...] = encoder._layout.features
    if isinstance(plain_encoder(encoder).transformers[0][2][0], int):  # an array
        return [("X", FloatTensorType([None, len(features)]))]
    types = {"i": Int64TensorType, "u": Int64TensorType, "f": FloatTensorType}
    kinds = [_values(feature).dtype.kind for feature in features]
    return [
        (feature.name, types.get(kind, StringTensorType)([None, 1]))
        for feature, kind in zip(features, kinds, strict=True)
    ]


def _is_plain(feature: Any) -> bool:
    if isinstance(feature, OneHot):
        values = feature.categories.to_numpy()
        texts = all(isinstance(value, str) for value in values)
        return (
            feature.infrequent is None and len(values) > 0 and (texts or values.dtype.kind in "iuf")
        )
    return isinstance(feature, Number)


def _values(feature: Any) -> Any:
    if isinstance(feature, OneHot):
        return np.repeat(_categories(feature)[:1], 2)
    fill = np.sinh(feature.fill) if feature.logarithm else feature.fill
    return np.array([fill, np.nan if feature.indicator else fill])


def _categories(feature: OneHot) -> Any:
    """Return categories in the dtype of rows, in which a column of numbers with gaps is float."""
    values = feature.categories.to_numpy()
    values = values if values.dtype.kind in "iuf" else values.astype(object)
    return np.append(values, np.nan) if feature.indicator else values


def _steps(feature: Any, filled: bool) -> dict[str, Any]:
    """Return transformers that make a feature's columns, by the end of its name.

    filled: whether numbers without an indicator may be missing.
    """
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import Binarizer, FunctionTransformer, OneHotEncoder

    if isinstance(feature, Number) and feature.logarithm:
        steps = _steps(replace(feature, logarithm=False), filled)
        before = FunctionTransformer(np.arcsinh)
        return {what: make_pipeline(before, step) for what, step in steps.items()}
    if isinstance(feature, Number):
        if not feature.indicator:
            return {"": SimpleImputer() if filled else "passthrough"}
        # skl2onnx silently drops an imputer's own indicator.
        far = SimpleImputer(strategy="constant", fill_value=_FAR)
        says = make_pipeline(far, Binarizer(threshold=_FAR / 2))
        return {"": SimpleImputer(), " missing": says}
    # Without infrequent categories the two options other than "error" are the same.
    unknown = "error" if feature.unknown == "error" else "ignore"
    return {"": OneHotEncoder(categories=[_categories(feature)], handle_unknown=unknown)}
