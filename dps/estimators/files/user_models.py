"""Users' own models in files: the shape of their data, and their tensors.

The maker of a model is not in the file: it is given again, and must make the same tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dps.estimators.base.user_models import Shape
from dps.files.records import Kind
from dps.models.arrays import Arrays
from dps.models.columns import Column, Columns


def own_kinds(cls: type, build: Callable[[Shape], Any]) -> list[Kind]:
    """Return the kinds of such models, and of the shape of their data.

    build: makes the model for a shape.
    """

    def model(shape: Any, tensors: Any) -> Any:
        if not isinstance(shape, Shape):
            raise ValueError(f"{shape!r} is no shape of data")
        try:
            made = build(shape)
        # An exception of the user's code, perhaps from parameters that were not saved.
        except Exception as error:
            raise ValueError(
                f"the given maker makes no model for {shape.n_features} columns and "
                f"{shape.n_outputs} outputs: {error!r}"
            ) from error
        if _tensors(made) != tensors:
            raise ValueError(
                f"the given maker's model has other tensors. Saved: {tensors}; given: "
                f"{_tensors(made)}"
            )
        return made

    own = Kind(f"model:{cls.__name__}", cls, ("shape", "tensors"), _fields, model)
    others = (("shape", Shape), ("columns", Columns), ("column", Column), ("arrays", Arrays))
    return [own, *(Kind.of(*each) for each in others)]


def _fields(model: Any) -> dict[str, Any]:
    return {"shape": model.shape, "tensors": _tensors(model)}


def _tensors(model: Any) -> list[Any]:
    return [[tensor.name, [*tensor.shape], tensor.kind] for tensor in model.layout.tensors]
