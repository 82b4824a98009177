"""Targets and weights: from a partition's y and sample weights to arrays for a loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps.data.collections.partitions import unmasked
from dps.losses import Loss
from dps.losses.base import Units
from dps.losses.classification import Multilabel


def as_targets(y: Any) -> np.ndarray:
    """Return y as an array, a single column as a vector, masked values as missing.

    Examples
    --------
    >>> as_targets([[1.0], [2.0]])
    array([1., 2.])
    """
    targets = y.toarray() if hasattr(y, "toarray") else np.asarray(unmasked(y))
    return targets[:, 0] if targets.ndim == 2 and targets.shape[1] == 1 else targets


def positive_code(classes: NDArray[Any] | None) -> int:
    """Return the code of the positive class of two, for precision and the like.

    It is the label 1, as for scikit-learn's scorers, which refuse others; else the second label.

    Examples
    --------
    >>> positive_code(np.array([1, 2])), positive_code(np.array(["no", "yes"]))
    (0, 1)
    """
    known = [] if classes is None else classes.tolist()
    return known.index(1) if 1 in known else 1


@dataclass(frozen=True)
class TargetEncoding:
    """Converts labels to targets, and scales weights to a mean of 1."""

    loss: Loss
    # (k,) sorted labels, or numbers of the columns of y; None for a regression.
    classes: np.ndarray | None
    class_weight: tuple[float, ...] | None  # factor for each class
    scale: float  # factor for all weights
    units: Units | None = None  # units of a regression's targets; None: those of y

    @property
    def multilabel(self) -> bool:
        """True if y has a column of 0 and 1 for each label."""
        return isinstance(self.loss, Multilabel)

    def codes(self, targets: NDArray[np.floating]) -> NDArray[np.intp]:
        """Return the class codes of encoded targets; for several labels zeros and ones."""
        if self.multilabel:
            return (targets > 0).astype(np.intp)
        n_classes = 0 if self.classes is None else len(self.classes)
        of_class = self.loss.targets(np.arange(n_classes, dtype=targets.dtype))
        order = np.argsort(of_class)
        return order[np.searchsorted(of_class[order], targets)]

    def encode(
        self, y: Any, weight: Any, dtype: Any
    ) -> tuple[NDArray[np.floating], NDArray[np.floating] | None]:
        """Return targets and weights of a partition's rows in the model's dtype."""
        labels = as_targets(y)
        factors = None
        if weight is not None:
            factors = as_targets(weight).astype(np.float64) * self.scale
        if self.classes is None:
            if self.units is not None:
                labels = self.units.of_targets(labels)
            targets = np.require(labels, dtype, ["C", "A"])
        elif self.multilabel:
            targets = np.require(self.loss.targets(labels.astype(dtype)), dtype, ["C", "A"])
        else:
            of_class = self.loss.targets(np.arange(len(self.classes), dtype=dtype))
            codes: Any
            if len(self.classes) == 2:  # ten times as fast as a search
                codes = labels == self.classes[1]
                targets = codes.astype(dtype)
                targets *= of_class[1] - of_class[0]
                targets += of_class[0]
            else:
                codes = np.searchsorted(self.classes, labels)
                targets = of_class[codes]
            if self.class_weight is not None:
                by_class = np.asarray(self.class_weight)[codes.astype(np.intp)]
                factors = by_class * (self.scale if factors is None else factors)
        if factors is None:
            return targets, None
        return targets, np.require(factors, dtype, ["C", "A"])


def class_weights(
    option: Mapping[Any, float] | str | None,
    classes: np.ndarray,
    weights: NDArray[np.float64],
) -> tuple[float, ...] | None:
    """Return the factor for each class from scikit-learn's ``class_weight`` option.

    classes: (k,) array.
    weights: (k,) array, sum of sample weights of each class.
    Raises ValueError: the option is invalid, names an unknown class, or has a factor that is
        negative or not finite.

    Examples
    --------
    >>> class_weights("balanced", np.array(["a", "b"]), np.array([1.0, 3.0]))
    (2.0, 0.6666666666666666)
    """
    if option is None:
        return None
    if isinstance(option, str):
        if option != "balanced":
            raise ValueError(
                "The 'class_weight' parameter must be a dict, 'balanced' or None. "
                f"Got {option!r} instead."
            )
        # A class without weight counts as absent.
        share = weights.sum() / max(1, np.count_nonzero(weights))
        return tuple(float(share / weight) if weight else 0.0 for weight in weights)
    known = dict(zip(classes.tolist(), range(len(classes)), strict=True))
    unknown = [label for label in option if label not in known]
    if unknown:
        raise ValueError(
            f"The 'class_weight' parameter names {unknown}, which are no classes of y: "
            f"{classes.tolist()}"
        )
    bad = {label: factor for label, factor in option.items() if not 0 <= factor < np.inf}
    if bad:
        raise ValueError(
            "The 'class_weight' parameter must hold finite factors that are not negative. "
            f"Got {bad} instead."
        )
    return tuple(float(option.get(label, 1.0)) for label in classes.tolist())
