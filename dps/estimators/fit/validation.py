"""The user's validation data: its partitions, and checks that it matches X.

It is inspected where it is, and nothing is learned from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
from sklearn.base import clone

from dps.cluster.base import Cluster
from dps.data.collections.partitions import Partition, as_pandas, is_dask, is_frame, is_list
from dps.data.feed.cuts import cut_at
from dps.data.feed.targets import TargetEncoding
from dps.data.survey.labels import Labels, check_kinds
from dps.data.survey.rows import DataSummary, Inspection, inspect_kept, warn_unless_repeated
from dps.estimators.fit.encoding import Encoding, as_frame, select
from dps.estimators.fit.inputs import as_weights, partitions_for
from dps.losses import Loss

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

#: Rows of local validation data beside a Dask collection that justify a partition.
_FEWEST = 4096


@dataclass(frozen=True, eq=False)
class ValidationData:
    """Validation data as the user gave it."""

    X: Any  # any container that `fit` takes
    y: Any
    weight: Any

    @classmethod
    def of(cls, X: Any, y: Any, weight: Any) -> ValidationData | None:
        """Return the given validation data, or None.

        Raises ValueError: a part of it is missing.
        """
        if X is None and y is None and weight is None:
            return None
        if X is None or y is None:
            given = "X_val" if X is not None else "y_val" if y is not None else "sample_weight_val"
            raise ValueError(
                f"{given} was given without {'y_val' if X is not None else 'X_val'}: validation "
                "data takes X_val and y_val, and sample_weight_val if rows have weights"
            )
        return cls(as_pandas(X), as_pandas(y), as_weights(weight))

    def partitions(
        self,
        estimator: BaseEstimator,
        beside: Any,
        encoding: Encoding | None,
        n_partitions: int,
    ) -> list[Partition]:
        """Cut validation data into partitions like X, which is `beside`.

        estimator: has the columns of X.
        n_partitions: of X; local data beside a Dask collection is cut into at most as many. Raises
            ValueError, TypeError.
        """
        try:
            return self._partitions(estimator, beside, encoding, n_partitions)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(
                f"invalid data for validation (X_val, y_val, sample_weight_val): {error}"
            ) from error

    def _partitions(
        self, estimator: BaseEstimator, beside: Any, encoding: Encoding | None, n: int
    ) -> list[Partition]:
        X = self.X
        if encoding is not None:
            if not is_frame(X) and is_frame(beside):
                raise TypeError(f"X is a dataframe, and X_val is of the type {type(X).__name__}")
            X = select(estimator, encoding.encoder, X, reset=False)
            if not is_dask(beside):
                X = encoding.encoder._encoded(as_frame(X), fit=False)
        # A list of partitions has no columns to compare with yet.
        checked = clone(estimator) if is_list(beside) else estimator
        partitions, local = partitions_for(
            checked, X, self.y, self.weight, classification=estimator._classification,
            reset=checked is not estimator, encoded=encoding is not None,
        )  # fmt: skip
        return _delayed(partitions[0], n) if local and is_dask(beside) else partitions


def _delayed(part: Partition, n: int) -> list[Partition]:
    """Return local rows as Dask partitions."""
    from dask import delayed

    rows = part.X.shape[0]

    def cut(values: Any, start: int, stop: int) -> Any:
        if values is None:
            return None
        at = slice(start, stop)
        return delayed(values.iloc[at] if hasattr(values, "iloc") else values[at], pure=False)

    return [
        Partition(*(cut(values, start, stop) for values in vars(part).values()))
        for start, stop in cut_at(0, rows, max(_FEWEST, -(-rows // n)))
    ]


def survey_validation(
    cluster: Cluster, summary: DataSummary, loss: Loss, classification: bool, n: int, whole: bool
) -> tuple[DataSummary, list[DataSummary]]:
    """Check that validation data matches the training data, and prepare it for kernels.

    n: number of its partitions, the cluster's last ones.
    whole: whether it is not partitioned, so that errors do not mention partitions.
    Returns the summary with the findings, and the summaries of the partitions.
    Raises ValueError: it has a defect or another shape.
    """
    first = len(summary.rows)
    found: list[DataSummary] = cluster.map(
        inspect_kept, range(first, first + n), opened=False,
        classification=classification, loss=loss, wanted=Inspection(),
    )  # fmt: skip
    warn_unless_repeated(found, " of X_val")
    for number, part in enumerate(found):
        place = " of X_val" if whole else f" in partition {number} of X_val"
        if part.defect is not None:
            raise ValueError(part.defect.replace("{place}", place))
        if part.total:
            _check_like(part, summary, place)
    if not any(part.total for part in found):
        raise ValueError("X_val has no rows: give some, or leave X_val and y_val out")
    dense = [first + k for k, part in enumerate(found) if part.total and not part.sparse]
    odd = [first + k for k, part in enumerate(found) if part.total and part.unreadable]
    if summary.sparse and dense:
        cluster.replace(_as_sparse, dense)
    return replace(
        summary,
        unreadable=(*summary.unreadable, *odd),
        validation=tuple(part.total for part in found),
    ), [part for part in found if part.total]


def _as_sparse(X: Any, number: int) -> Any:
    return scipy.sparse.csr_array(X)


def _check_like(part: DataSummary, summary: DataSummary, place: str) -> None:
    for name, given, wanted in (
        ("X", part.n_features, summary.n_features),
        ("y", part.n_outputs, summary.n_outputs),
    ):
        if given != wanted:
            raise ValueError(
                f"{name}_val has {given} column{'s' * (given != 1)}"
                f"{place.replace(' of X_val', '')}, and {name} has {wanted}: they must be equal"
            )
    if None not in (part.columns, summary.columns) and part.columns != summary.columns:
        raise ValueError(
            f"the columns of X_val are not those of X: {[str(name) for name in part.columns or ()]}"
            f"; X has {[str(name) for name in summary.columns or ()]}"
        )


def check_targets(found: Sequence[DataSummary], targets: TargetEncoding) -> None:
    """Raise if y_val has labels that y lacks, or no row counts."""
    weight = sum(part.targets.weight for part in found)
    if targets.classes is not None and not targets.multilabel:
        check_kinds(
            [("y", targets.classes), *(("y_val", part.labels.classes) for part in found)],
            "y and y_val",
        )
        labels = Labels.merge([part.labels for part in found])
        unknown = labels.classes[~np.isin(labels.classes, targets.classes)]
        if len(unknown):
            raise ValueError(
                f"y_val holds labels {unknown.tolist()}, which y does not: "
                f"{targets.classes.tolist()}; leave their rows out"
            )
        if targets.class_weight is not None:
            at = np.searchsorted(targets.classes, labels.classes)
            weight = float((np.asarray(targets.class_weight)[at] * labels.weights).sum())
    if weight <= 0:
        raise ValueError(
            "no row of X_val counts: give some of them weight, by sample_weight_val or class_weight"
        )
