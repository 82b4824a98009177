"""Building blocks of estimators; `dps` has the estimators for users.

A new one derives from :class:`Classifier` or :class:`Regressor` and is decorated by
:func:`estimator`, see docs/howto/extending.md.
"""

from __future__ import annotations

from dps.estimators.base.classifier import Classifier
from dps.estimators.base.declare import estimator
from dps.estimators.base.regressor import Regressor

__all__ = ["Classifier", "Regressor", "estimator"]


def __dir__() -> list[str]:
    return __all__
