"""Estimators for a PyTorch module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils._param_validation import StrOptions
from torch import nn

from dps.estimators.base.classifier import AnyClassifier
from dps.estimators.base.declare import estimator
from dps.estimators.base.regressor import AnyRegressor
from dps.estimators.base.user_models import (
    ModelLossOfLabels,
    ModelLossOfNumbers,
    Shape,
    probabilities,
)
from dps.estimators.custom import UserModelEstimator
from dps.estimators.predict.predict import Finish
from dps.losses import Loss
from dps.torch.criteria import criterion_of
from dps.torch.module import TorchModel

_MODULE = """
module : Module or callable
    A module that takes a tensor of rows; training starts from its weights, and leaves it as it is.
    Or a class or function that makes one, called with the number of columns and of classes or
    outputs, with PyTorch's generator seeded by `random_state`, and with ``hidden=64`` where the
    estimator has ``module__hidden=64``.
"""
_PLACE = """
device : str, default="auto"
    Device of the modules. "auto" is a GPU if the worker has one, else the CPU. On a GPU, which has
    not been tried yet, parameters and gradients are copied in each step.
takes : {"dense", "sparse", "columns"}, default="dense"
    Input of the module: a tensor, a sparse tensor (COO), or a dict of tensors by column name. In
    the dict, categories and strings are codes as int64, and the code of unknown ones is one above
    all others. A function that makes the module then gets a dict of the number of codes of each
    column (0 for numbers) in place of the number of columns.
"""
_FITTED = """
module_ : Module
    A plain module with the trained weights, on the CPU and in evaluation mode.
"""


@dataclass(eq=False, repr=False, kw_only=True)
class _Torch(UserModelEstimator):
    """The common part of the two estimators."""

    module: Callable[..., nn.Module] | nn.Module = field(kw_only=False)
    criterion: Callable[..., Any] | None = field(default=None, kw_only=False)
    device: str = "auto"
    takes: Literal["dense", "sparse", "columns"] = "dense"

    _code: ClassVar[tuple[str, ...]] = ("module", "criterion")
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "module": "no_validation",
        "criterion": "no_validation",
        "device": [str],
        "takes": [StrOptions({"dense", "sparse", "columns"})],
    }

    def _takes(self) -> str:
        return self.takes

    def _build(self, shape: Shape) -> TorchModel:
        given = self.module
        options = self._options(not isinstance(given, nn.Module))
        if not isinstance(given, nn.Module):
            if not callable(given):
                raise TypeError(
                    f"The 'module' parameter of {type(self).__name__} must be a torch.nn.Module, "
                    f"or make one. Got {given!r} instead."
                )
            with torch.random.fork_rng():
                torch.manual_seed(shape.seed)
                given = shape.made(given, options)
        criterion = criterion_of(self.criterion, shape.classification)
        model = TorchModel(
            given, criterion, shape.n_features, shape.n_outputs, shape.classification,
            self.device, self.takes, shape.columns,
        )  # fmt: skip
        model.shape = shape
        return model

    def _check_mode(self, model: Any, together: bool) -> None:
        """Refuse batch norm whose first step sets its buffers, if replicas do not wait."""
        for name, part in model.module.named_modules():
            sets = isinstance(part, nn.modules.batchnorm._NormBase) and part.momentum is None
            if sets and not together:
                raise ValueError(
                    f"{name!r} of the module has momentum=None, whose first step sets the running "
                    f"means. With mode={self.mode!r} the means of all replicas would add up: give "
                    "it a momentum, or use mode='sync'"
                )

    def _fitted(self, model: TorchModel, params: NDArray[np.floating]) -> dict[str, Any]:
        """Return a module with the trained weights; see `Trainable._fitted`."""
        return {**super()._fitted(model, params), "module_": model.with_weights(params)}


@estimator(model=TorchModel, module=_MODULE, device=_PLACE, fitted=_FITTED)
class TorchClassifier(_Torch, AnyClassifier):
    """A PyTorch module for labels, trained where its data lies.

    The module's outputs are logits: one per class, or one for two classes.

    Parameters
    ----------
    <module>
    criterion : Module, class of one, its name in torch.nn, function or None, default=None
        From outputs and targets to a loss a row; modules of ``torch.nn`` are asked for these. None
        is the cross entropy. Targets are codes of classes, beside a single output as numbers.
    <device>
    class_weight : dict, "balanced" or None, default=None
    <steps>
    <rows>
    <places>

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
    <fitted>
    <attributes>

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from torch import nn
    >>> from dps.torch import TorchClassifier
    >>> def network(n_features, n_classes):
    ...     return nn.Sequential(nn.Linear(n_features, 32), nn.ReLU(), nn.Linear(32, n_classes))
    >>> X, y = load_iris(return_X_y=True)
    >>> model = TorchClassifier(network, learning_rate=0.02, tol=None, random_state=0)
    >>> bool(model.fit(X, y).score(X, y) > 0.95)
    True
    """

    def _loss(self) -> Loss:
        return ModelLossOfLabels()

    def _probabilities(self) -> Finish:
        return probabilities


@estimator(model=TorchModel, module=_MODULE, device=_PLACE, fitted=_FITTED)
class TorchRegressor(_Torch, AnyRegressor):
    """A PyTorch module for numbers, trained where its data lies.

    Parameters
    ----------
    <module>
    criterion : Module, class of one, its name in torch.nn, function or None, default=None
        From outputs and targets to a loss a row; modules of ``torch.nn`` are asked for these. None
        is the mean squared error.
    <device>
    <steps>
    <rows>
    <places>

    Attributes
    ----------
    n_outputs_ : int
    <fitted>
    <attributes>

    Examples
    --------
    >>> import numpy as np
    >>> from torch import nn
    >>> from dps.torch import TorchRegressor
    >>> X = np.random.default_rng(0).uniform(-1, 1, size=(500, 2))
    >>> y = X[:, 0] * X[:, 1]
    >>> network = nn.Sequential(nn.Linear(2, 32), nn.SiLU(), nn.Linear(32, 1))
    >>> model = TorchRegressor(network, learning_rate=0.02, tol=None, random_state=0)
    >>> bool(model.fit(X, y).score(X, y) > 0.9)
    True
    """

    def _loss(self) -> Loss:
        return ModelLossOfNumbers()
