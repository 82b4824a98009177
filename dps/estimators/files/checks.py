"""Checks that the fitted attributes in a file are valid and agree."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from dps._checks import count, floats
from dps.losses.classification import Multilabel
from dps.preprocessing import FrameEncoder
from dps.training.epochs.records import History
from dps.training.state import TrainState

if TYPE_CHECKING:
    from dps.estimators.base.trainable import Trainable

#: Raises unless an attribute agrees with the earlier ones.
Check = Callable[[Any, Any], None]


def checks_of(estimator: Trainable) -> dict[str, Check]:
    """Return checks of the attributes that a fitted estimator saves, in order."""
    of_labels = ("classes_", "multilabel_") if estimator._classification else ()
    known = {*_COMMON, *of_labels, *estimator._saved, "_carry"}
    return {name: check for name, check in _CHECKS.items() if name in known}


def _columns(estimator: Trainable) -> int:
    """Return the columns of the model's input."""
    encoder = estimator.encoder_
    return int(estimator.n_features_in_ if encoder is None else encoder.n_features_out_)


def _outputs(estimator: Trainable) -> int | None:
    """Return the raw outputs that the model must have; None if any number is valid."""
    if not estimator._classification:
        return None
    n_classes = len(estimator.classes_)
    return int(estimator._fitted_loss().n_outputs(n_classes))


def _must(fits: bool, name: str, value: object) -> None:
    if not fits:
        raise ValueError(f"its {name} does not fit the rest of the file: {value!r}")


def _check_encoder(estimator: Trainable, encoder: Any) -> None:
    if encoder is not None:
        fitted = isinstance(encoder, FrameEncoder) and hasattr(encoder, "_layout")
        _must(fitted, "encoder_", encoder)
        _must(encoder.n_features_in_ == estimator.n_features_in_, "encoder_", encoder)


def _check_features(estimator: Trainable, n_features: Any) -> None:
    count(n_features, "n_features_in_", 1)


def _check_names(estimator: Trainable, names: Any) -> None:
    texts = isinstance(names, np.ndarray) and all(isinstance(name, str) for name in names.ravel())
    _must(texts and names.shape == (estimator.n_features_in_,), "feature_names_in_", names)
    if estimator.encoder_ is not None:
        _must([*names] == [*estimator.encoder_._layout.columns], "feature_names_in_", names)


def _check_means(estimator: Trainable, means: Any) -> None:
    if means is not None:
        floats(means, "_means", estimator.n_features_in_)


def _check_n_iter(estimator: Trainable, n_iter: Any) -> None:
    count(n_iter, "n_iter_", 1)


def _check_loss(estimator: Trainable, loss: Any, name: str) -> None:
    _must(type(loss) is float, name, loss)


def _check_history(estimator: Trainable, history: Any) -> None:
    fits = isinstance(history, History) and len(history) == estimator.n_iter_
    _must(fits, "history_", history)


def _check_classes(estimator: Trainable, classes: Any) -> None:
    fits = isinstance(classes, np.ndarray) and classes.ndim == 1 and len(classes) > 1
    _must(fits and bool((classes[1:] > classes[:-1]).all()), "classes_", classes)


def _check_multilabel(estimator: Trainable, multilabel: Any) -> None:
    model = getattr(estimator._carry, "model", None)
    several = isinstance(getattr(model, "loss", None), Multilabel)
    _must(multilabel is several, "multilabel_", multilabel)


def _check_coef(estimator: Trainable, coef: Any) -> None:
    n_features, n_outputs = _columns(estimator), _outputs(estimator)
    one = n_outputs is None and np.ndim(coef) == 1
    rows = () if one else (len(coef) if n_outputs is None else n_outputs,)
    floats(coef, "coef_", *rows, n_features, finite=False)


def _check_intercept(estimator: Trainable, intercept: Any) -> None:
    if np.ndim(estimator.coef_) == 1:
        _must(type(intercept) is float, "intercept_", intercept)
    else:
        floats(intercept, "intercept_", len(estimator.coef_), finite=False)


def _check_alpha(estimator: Trainable, alpha: Any) -> None:
    _must(type(alpha) is float and 0 <= alpha < np.inf, "alpha_", alpha)


def _check_standardize(estimator: Trainable, standardize: Any) -> None:
    _must(type(standardize) is bool, "standardize_", standardize)


def _check_path(estimator: Trainable, path: Any) -> None:
    floats(path, "alpha_path_", len(np.atleast_1d(path)), 3)


def _check_model(estimator: Trainable, model: Any) -> None:
    _must(_fits(estimator, model), "_model", model)


def _check_params(estimator: Trainable, params: Any) -> None:
    model = getattr(estimator, "_model", estimator._carry.model)
    floats(params, "_params", model.layout.size, finite=False)
    _must(params.dtype == model.dtype, "_params", params)


def _check_carry(estimator: Trainable, carry: Any) -> None:
    _must(isinstance(carry, TrainState) and _fits(estimator, carry.model), "_carry", carry)


def _fits(estimator: Trainable, model: Any) -> bool:
    """True if a model has the estimator's class, and its data's columns and outputs."""
    if type(model) is not estimator._model_type:
        return False
    if estimator._is_own and model.classification != estimator._classification:
        return False
    outputs, found = _outputs(estimator), getattr(model, "n_outputs", 1)
    if outputs is None and "coef_" in estimator._saved:
        outputs = len(np.atleast_2d(estimator.coef_))
    elif outputs is None:
        outputs = getattr(getattr(estimator, "_model", model), "n_outputs", 1)
    return bool(model.n_features == _columns(estimator) and found == outputs)


#: Checks for every fit.
_COMMON = (
    "encoder_", "n_features_in_", "feature_names_in_", "n_iter_", "loss_", "best_loss_", "history_",
    "_means",
)  # fmt: skip
#: In the order in which they can be made.
_CHECKS: dict[str, Check] = {
    "encoder_": _check_encoder,
    "n_features_in_": _check_features,
    "feature_names_in_": _check_names,
    "n_iter_": _check_n_iter,
    "loss_": functools.partial(_check_loss, name="loss_"),
    "best_loss_": functools.partial(_check_loss, name="best_loss_"),
    "history_": _check_history,
    "_means": _check_means,
    "classes_": _check_classes,
    "multilabel_": _check_multilabel,
    "coef_": _check_coef,
    "intercept_": _check_intercept,
    "alpha_": _check_alpha,
    "alpha_path_": _check_path,
    "standardize_": _check_standardize,
    "_model": _check_model,
    "_carry": _check_carry,
    "_params": _check_params,
}
