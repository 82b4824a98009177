"""Errors that translate parameters of other libraries."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from sklearn.utils._param_validation import InvalidParameterError

from dps.cluster.options import Options

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

#: Parameters of estimators; a hint is given if the estimator has the parameter that it names.
_PARAMETERS = {
    "C": "alpha=1 / (C * rows)",
    "accumulate_grad_batches": "batch_size=",
    "callbacks": "set_callbacks()",
    "epochs": "max_iter=",
    "epsilon": "loss=dps.losses.Huber(...) or dps.losses.EpsilonInsensitive(...)",
    "eta0": "learning_rate=",
    "gradient_accumulation": "batch_size=",
    "gradient_accumulation_steps": "batch_size=",
    "learning_rate_init": "learning_rate=",
    "lr": "learning_rate=",
    "max_epochs": "max_iter=",
    "n_epochs": "max_iter=",
    "n_jobs": "n_replicas=",
    "patience": "n_iter_no_change=",
    "quantile": "loss=dps.losses.Quantile(...)",
    "seed": "random_state=",
    "solver": "optimizer=",
    "weight_decay": "optimizer=dps.optimizers.AdamW(weight_decay=...)",
}
#: Parameters of regressors only.
_OF_NUMBERS = {"epsilon", "quantile"}
#: Arguments of `fit` and `predict`.
METHODS = {
    "batch_size": "batch_size= of the estimator",
    "callbacks": "set_callbacks()",
    "classes": "partial_fit(X, y, classes)",
    "early_stopping_rounds": "early_stopping=True and n_iter_no_change= of the estimator",
    "epochs": "max_iter= of the estimator",
    "eval_set": "X_val=, y_val=",
    "output_margin": "decision_function(X)",
    "validation_data": "X_val=, y_val=",
    "verbose": "verbose= of the estimator",
}


def refuse_unknown(
    where: str, given: Iterable[str], known: Iterable[str], synonyms: Mapping[str, str] = METHODS
) -> None:
    """Raise for an unknown parameter.

    Examples
    --------
    >>> refuse_unknown("fit()", ["eval_set"], ["X", "y"])
    Traceback (most recent call last):
    ...
    TypeError: fit() got an unexpected keyword argument 'eval_set': use X_val=, y_val=
    >>> refuse_unknown("fit()", ["sample_weights"], ["sample_weight"])
    Traceback (most recent call last):
    ...
    TypeError: fit() got an unexpected keyword argument 'sample_weights': use sample_weight=
    """
    known = list(known)
    for name in given:
        if name in known:
            continue
        near = get_close_matches(name, known, 1, 0.8)
        use = synonyms.get(name, f"{near[0]}=" if near else "")
        raise TypeError(
            f"{where} got an unexpected keyword argument {name!r}{': use ' * bool(use)}{use}"
        )


def refuse_classes(estimator: BaseEstimator, constraints: Mapping[str, Sequence[Any]]) -> None:
    """Raise if a parameter is a class in place of an instance."""
    for name, allowed in constraints.items():
        given = getattr(estimator, name, None)
        if isinstance(given, type) and any(
            isinstance(each, type) and issubclass(given, each) for each in allowed
        ):
            raise InvalidParameterError(
                f"The {name!r} parameter of {type(estimator).__name__} is the class "
                f"{given.__name__}: call it, {name}={given.__name__}(...)"
            )


def checks_names(cls: Any) -> None:
    """Make the constructor of an estimator raise such errors; its signature stays."""
    plain, known = cls.__init__, [each.name for each in fields(cls) if each.init]
    hints = {
        name: use for name, use in _PARAMETERS.items()
        if (use.partition("=")[0] in known or hasattr(cls, use.removesuffix("()")))
        and not (name in _OF_NUMBERS and cls._classification)
    }  # fmt: skip
    hints |= {each.name: f"dask.config.set({{'dps.{each.name}': ...}})" for each in fields(Options)}

    @functools.wraps(plain)
    def __init__(self: Any, *args: Any, **given: object) -> None:
        refuse_unknown(f"{cls.__name__}()", given, known, hints)
        plain(self, *args, **given)

    cls.__init__ = __init__
