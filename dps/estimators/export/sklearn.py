"""A trained model as a fitted scikit-learn estimator that predicts the same.

This module exports linear models, and has the common part for networks. Attributes of scikit-learn
are set as its own `fit` sets them, without training.
"""

from __future__ import annotations

from copy import copy
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from dps.estimators.export.encoder import plain_encoder
from dps.losses import LogLoss, Loss, SquaredError

if TYPE_CHECKING:
    from dps.estimators.base.estimator import DistributedEstimator


def plain_linear(estimator: DistributedEstimator) -> Any:
    """Return the scikit-learn estimator of a linear one; see `_Linear.to_sklearn`."""
    loss: Loss = estimator._loss()
    model = _unfitted(loss, {"fit_intercept": estimator.fit_intercept})
    if model is None:
        raise ValueError(
            f"scikit-learn has no linear model with loss={estimator.loss!r}: keep the model with "
            "save, or its coef_ and intercept_"
        )
    coef, intercept = estimator.coef_, np.atleast_1d(estimator.intercept_)
    if estimator._classification and estimator.multilabel_:
        model = _of_each_label(estimator, model)
    elif estimator._classification:
        n_iter = estimator.n_iter_
        if isinstance(loss, LogLoss):
            n_iter = np.array([n_iter], np.int32)
        model = filled(
            model, estimator, classes_=estimator.classes_.copy(), coef_=coef.copy(),
            intercept_=intercept.copy(), n_iter_=n_iter,
        )  # fmt: skip
    elif coef.ndim == 1:
        model = _regressor(model, estimator, coef, intercept)
    elif isinstance(loss, SquaredError):
        model = filled(model, estimator, coef_=coef.copy(), intercept_=intercept.copy())
    else:
        from sklearn.base import clone
        from sklearn.multioutput import MultiOutputRegressor

        each = [
            _regressor(clone(model), estimator, coef[k], intercept[k : k + 1])
            for k in range(len(coef))
        ]
        model = filled(MultiOutputRegressor(model), estimator, estimators_=each)
    return after_encoder(estimator, model)


def _unfitted(loss: Loss, options: dict[str, Any]) -> Any:
    """Return scikit-learn's linear model with a loss; None if it has none."""
    from sklearn import linear_model

    name = vars(type(loss)).get("_peer")  # a subclass may compute something else
    if name is None:
        return None
    own = {field.name: getattr(loss, field.name) for field in fields(loss)}
    if name.startswith("SGD"):
        own["loss"] = loss.name
    return getattr(linear_model, name)(**own, **options)


def _of_each_label(estimator: DistributedEstimator, model: Any) -> Any:
    """Return a binary model for each label."""
    from sklearn.base import clone
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.preprocessing import LabelBinarizer

    labels = np.arange(2)
    each = [
        filled(
            clone(model), estimator, classes_=labels.copy(), coef_=coef[None].copy(),
            intercept_=np.array([intercept]), n_iter_=np.array([estimator.n_iter_], np.int32),
        )
        for coef, intercept in zip(estimator.coef_, estimator.intercept_, strict=True)
    ]  # fmt: skip
    both = np.repeat(labels[:, None], len(each), axis=1)
    return filled(
        OneVsRestClassifier(model), estimator, estimators_=each,
        label_binarizer_=LabelBinarizer(sparse_output=True).fit(both),
    )  # fmt: skip


def filled(
    model: Any, estimator: DistributedEstimator, *, named: bool = True, **attributes: Any
) -> Any:
    """Set fitted attributes of a scikit-learn estimator, with the columns that a model sees."""
    encoder, names = estimator.encoder_, getattr(estimator, "feature_names_in_", None)
    n_features = estimator.n_features_in_ if encoder is None else encoder.n_features_out_
    attributes["n_features_in_"] = int(n_features)
    if named and encoder is None and names is not None:
        attributes["feature_names_in_"] = names.copy()
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


def after_encoder(estimator: DistributedEstimator, *steps: Any) -> Any:
    """Return the steps of a pipeline after the encoder, if there is one; a single step by itself.

    The encoder becomes one of scikit-learn's if that exists.
    """
    if estimator.encoder_ is not None:
        steps = (plain_encoder(estimator.encoder_) or copy(estimator.encoder_), *steps)
    if len(steps) == 1:
        return steps[0]
    from sklearn.pipeline import make_pipeline

    return make_pipeline(*steps)


def _regressor(model: Any, estimator: DistributedEstimator, coef: Any, intercept: Any) -> Any:
    """Return a fitted regressor of one output."""
    attributes = {"coef_": coef.copy(), "intercept_": intercept[0], "n_iter_": estimator.n_iter_}
    if hasattr(model, "_get_loss"):  # generalised linear models have a link
        attributes["_base_loss"] = model._get_loss()
    elif hasattr(model, "learning_rate"):  # the intercept of SGD is a vector
        attributes |= {"intercept_": intercept.copy(), "t_": 1.0}
    return filled(model, estimator, **attributes)
