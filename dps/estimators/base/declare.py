"""The decorator that makes a class an estimator, for files, tests and docstrings."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, dataclass_transform

import dps
from dps._parameters import in_order_of_docstring
from dps.estimators.base.habits import checks_names
from dps.estimators.base.nested import MakesModel, takes_options
from dps.estimators.base.parameters import SHARED

_Class = TypeVar("_Class", bound=type)

#: Estimators by the names of their classes, for files.
ESTIMATORS: dict[str, Any] = {}


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(field,))
def estimator(model: type | None = None, **pieces: str) -> Callable[[_Class], _Class]:
    """Make a subclass of `DistributedEstimator` an estimator that can be saved and loaded.

    Its annotated class attributes become parameters, by keyword. In its docstring a line ``<name>``
    is replaced by the piece of that name, and ``<parameter>`` by the parameter's default.

    Parameters
    ----------
    model : type, optional
        Class of the models it trains: one of dps, or a frozen dataclass of numbers, texts, arrays,
        losses and dtypes that checks its fields when it is made, since a file may hold any.
    **pieces : str
        Besides ``<rows>``, ``<steps>``, ``<places>`` and ``<attributes>``.

    Raises
    ------
    ValueError
        There is an estimator of that name elsewhere.
    """

    def made(cls: _Class) -> _Class:
        known = ESTIMATORS.get(cls.__name__)
        place = dps._LAZY.get(cls.__name__) if known is None else known.__module__
        if place not in (None, cls.__module__) and not cls.__module__.startswith("dps."):
            raise ValueError(f"{place} has a {cls.__name__}: use another name")
        text = inspect.cleandoc(cls.__doc__ or "")  # a dataclass without a docstring makes its own
        new: Any = dataclass(eq=False, repr=False, kw_only=True)(cls)
        for name, piece in {**pieces, **SHARED}.items():
            text = text.replace(f"<{name}>", piece.strip())
        for parameter in fields(new):
            text = text.replace(f"<{parameter.name}>", str(parameter.default))
        new.__doc__ = text
        in_order_of_docstring(new)
        if model is not None:
            new._model_type = model
        checks_names(new)
        if issubclass(new, MakesModel):
            takes_options(new)
        ESTIMATORS[cls.__name__] = new
        return cls  # `new` is the same class

    return made


def find(name: object) -> Any:
    """Return the estimator with a name, importing its module of dps.

    Raises ValueError: there is none.
    """
    if isinstance(name, str) and name in dps._LAZY:
        importlib.import_module(dps._LAZY[name])
    if not isinstance(name, str) or name not in ESTIMATORS:
        raise ValueError(f"it is a {name!r}, and there are {sorted(ESTIMATORS)}")
    return ESTIMATORS[name]
