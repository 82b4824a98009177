"""Copies of an estimator that are fitted to sampled rows and scored on held-out ones.

The sample has rows from all partitions. The copies are fitted in threads of this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from sklearn.base import clone

from dps._warned import warned
from dps.cluster.choice import in_this_process
from dps.data.feed.blocks import as_rows
from dps.data.feed.targets import TargetEncoding, as_targets
from dps.data.survey.spread import some_of
from dps.estimators.auto.race import Losses
from dps.estimators.fit.encoding import Encoding
from dps.estimators.predict.predict import RawPredictor
from dps.losses.base import as_columns
from dps.losses.constants import losses_of_constant

if TYPE_CHECKING:
    from dps.cluster.base import Cluster
    from dps.data.survey.rows import DataSummary
    from dps.estimators.base.estimator import DistributedEstimator
    from dps.estimators.fit.survey import Survey

#: Stored values of X in the sample.
_SAMPLED = 1 << 21
#: Number of folds, and the least rows of one.
FOLDS, _FEWEST = 5, 2
#: The tolerance of the compared fits: a multiple of `tol`, and a bound.
_ROUGH, _ROUGHEST = 100, 1e-2
#: Number of groups of held-out rows.
_GROUPS = 512

Rows = tuple[Any, np.ndarray, np.ndarray | None]


class TooFewError(ValueError):
    """There are too few rows to hold some out, or all have the same label."""


class Comparison:
    """Copies of a fit's estimator, one per fold.

    rows: sampled training rows.
    held: the user's validation rows, which score; None: some of `rows` do.
    n_folds: largest number of folds.
    warm: whether each fit of a fold starts from the one before.
    Raises TooFewError: there are too few rows.
    """

    def __init__(
        self, survey: Survey, rows: Rows, held: Rows | None, n_folds: int, warm: bool
    ) -> None:
        estimator, targets = survey.estimator, replace(survey.targets, units=None)
        if targets.classes is not None and not targets.multilabel:
            targets = _of_labels(estimator, targets, rows[1])
            held = held and _some(held, np.isin(held[1], np.asarray(targets.classes)))
        self._numbers = np.empty(0, np.intp) if held else _folds(rows[1], targets)
        self._rows, self._held, self._targets = rows, held, targets
        self._stops, self._begins = estimator._stops_early, survey.loading.compare
        encoded = None  # rows of linear models are scaled, and columns left out
        if survey.encoding is not None and not hasattr(estimator, "standardize"):
            encoded = Encoding(survey.encoding.encoder, fitted=True)
        self._encoded = encoded
        n_rows = len(rows[1]) if held else len(rows[1]) * (FOLDS - 1) // FOLDS
        self.models = [
            _copy(estimator, targets, survey.seed, n_rows).set_params(warm_start=warm)
            for _ in range(1 if held else n_folds)
        ]

    def __len__(self) -> int:
        return len(self.models)

    def losses(self, fold: int) -> Losses:
        """Fit the model of a fold, and return the losses of the held-out rows."""
        self._begins()
        rows, held, model = self._rows, self._held, self.models[fold]
        X, y, weight = rows if held else _some(rows, self._numbers != fold)
        left, of_left, weight_left = held or _some(rows, self._numbers == fold)
        stops = (left, of_left, weight_left) if self._stops else (None, None, None)
        with in_this_process(), warned():  # the final fit warns
            start = model._warm() if model.warm_start else None
            model._run(X, y, weight, stops, start=start, encoded=self._encoded)
            raw = RawPredictor(model._raw(), np.ascontiguousarray)(left)
            return _losses(raw, of_left, weight_left, self._targets)

    def of_constant(self) -> float | None:
        """Mean held-out loss of the best constant for the training rows, for single labels."""
        if self._targets.classes is None or self._targets.multilabel:
            return None
        return _of_constant(self._targets, self._rows, self._held or self._rows)


def sample_of(survey: Survey) -> tuple[Rows, Rows | None]:
    """Sample training rows, and rows of the user's validation data."""
    summary: DataSummary = survey.summary
    cluster: Cluster = survey.cluster
    share = min(1.0, _SAMPLED / max(1, summary.elements))
    trained = len(summary.rows)
    given = range(trained, trained + len(summary.validation))
    held = _gathered(cluster, given, share) if given else None
    return _gathered(cluster, range(trained), share), held


def scaled(rows: Rows, deviation: NDArray[np.float64]) -> Rows:
    """Divide columns of CSR rows by their deviations."""
    X, y, weight = rows
    data = X.data / deviation[X.indices].astype(X.dtype)
    return type(X)((data, X.indices, X.indptr), X.shape), y, weight


def _gathered(cluster: Cluster, numbers: Sequence[int], share: float) -> Rows:
    """Sample rows of partitions, and concatenate them."""
    parts = [part for part in cluster.map(some_rows, numbers, share=share) if part is not None]
    if len(parts) == 1:
        return parts[0]
    Xs, ys, weights = zip(*parts, strict=True)
    sparse = any(scipy.sparse.issparse(X) for X in Xs)
    X = scipy.sparse.vstack([scipy.sparse.csr_array(X) for X in Xs], "csr") if sparse else None
    weight = None if weights[0] is None else np.concatenate(weights)
    return np.vstack(Xs) if X is None else X, np.concatenate(ys), weight


def some_rows(X: Any, y: Any, weight: Any, *, share: float) -> Rows | None:
    """Sample a share of a partition's rows, without rows of weight zero; None if empty."""
    X = as_rows(X)
    rows = X.shape[0]
    if not rows:
        return None
    some = some_of(rows, max(1, round(share * rows)))
    if weight is not None:
        some = some[as_targets(weight)[some] > 0]
    X = X.iloc[some].to_numpy() if hasattr(X, "iloc") else X[some]
    return X, as_targets(y)[some], None if weight is None else as_targets(weight)[some]


def _copy(estimator: DistributedEstimator, targets: TargetEncoding, seed: int, rows: int) -> Any:
    """Copy an estimator without callbacks, checkpoints, client and server, for short fits."""
    tol = min(_ROUGH * (estimator.tol or np.inf), _ROUGHEST)  # also without a `tol`
    model = clone(estimator).set_params(
        alpha="auto", mode="sync", shuffle=True, n_replicas=1, encoder="auto",
        checkpoint=None, client=None, server=None, scoring="loss", verbose=0, random_state=seed,
        tol=max(estimator.tol or 0.0, tol),
    )  # fmt: skip
    if estimator._ends_as_planned:
        model.set_params(max_iter=estimator._epochs_to_compare(rows), n_replicas="auto")
    if hasattr(model, "_skl_callbacks"):
        del model._skl_callbacks
    if targets.class_weight is not None:  # the weights for all rows
        labels: Any = targets.classes
        model.class_weight = dict(zip(labels.tolist(), targets.class_weight, strict=True))
    return model


def _of_constant(targets: TargetEncoding, rows: Rows, held: Rows) -> float:
    """Return the mean held-out loss of the constant that is best for the training rows."""
    if not (targets.loss.native is not None and targets.loss.has_probabilities):
        return np.inf
    classes = np.asarray(targets.classes)
    factors = 1.0 if targets.class_weight is None else np.asarray(targets.class_weight)
    ours, theirs = (
        np.bincount(np.searchsorted(classes, y), weight, minlength=len(classes)) * factors
        for _, y, weight in (rows, held)
    )
    lost = losses_of_constant(targets.loss, np.where(ours > 0, ours, 0.5))
    return float(np.average(lost, weights=theirs))


def _losses(
    raw: NDArray[np.floating], y: np.ndarray, weight: np.ndarray | None, targets: TargetEncoding
) -> Losses:
    """Add up losses of raw outputs in random groups."""
    y, weight = targets.encode(y, weight, raw.dtype)
    order, ends = np.random.default_rng(0).permutation(len(y)), ends_of_groups(len(y))
    raw, y, weights = raw[order], y[order], np.ones(len(y), raw.dtype)
    if weight is not None:
        weights = weight[order]
    loss, out = targets.loss, np.empty_like(raw)
    at_each = [slice(start, stop) for start, stop in pairwise(ends)]
    lost = [loss.evaluate(y[at], raw[at], weights[at], out[at]) for at in at_each]
    found = Losses(np.array(lost), np.add.reduceat(weights.astype(np.float64), ends[:-1]))
    if targets.classes is None:
        exact = np.require(loss.start(as_columns(y)), raw.dtype, ["C", "A"])
        return found._replace(least=loss.evaluate(y, exact, weights, out))
    wrong = loss.evaluate(_next_likely(targets, y, raw), raw, None, out) / max(1, len(y))
    return found._replace(wrong=np.array([wrong]))


def ends_of_groups(rows: int) -> NDArray[np.intp]:
    """Return the bounds of groups of randomly ordered rows."""
    return np.linspace(0, rows, min(rows, _GROUPS) + 1).astype(np.intp)


def by_fold(rows: Rows, targets: TargetEncoding) -> list[Rows]:
    """Return the rows that each fold holds out, in random order."""
    numbers = _folds(rows[1], targets)
    order = np.random.default_rng(0).permutation(len(numbers))
    order = order[np.argsort(numbers[order], kind="stable")]
    sorted_rows, ends = _some(rows, order), np.searchsorted(numbers[order], range(FOLDS + 1))
    return [_some(sorted_rows, slice(*between)) for between in pairwise(ends.tolist())]


def in_order(rows: Rows) -> Rows:
    """Shuffle rows."""
    return _some(rows, np.random.default_rng(0).permutation(len(rows[1])))


def _next_likely(
    targets: TargetEncoding, y: NDArray[np.floating], raw: NDArray[np.floating]
) -> NDArray[np.floating]:
    """Return the most likely wrong label of each row; with several labels one is flipped."""
    codes, rows = targets.codes(y), np.arange(len(y))
    if targets.multilabel:
        codes[rows, np.abs(raw).argmin(axis=1)] ^= 1
    elif raw.shape[1] == 1:
        codes = 1 - codes
    else:
        others = raw.copy()
        others[rows, codes] = -np.inf
        codes = others.argmax(axis=1)
    return np.require(targets.loss.targets(codes.astype(raw.dtype)), raw.dtype, ["C", "A"])


def _of_labels(
    estimator: DistributedEstimator, targets: TargetEncoding, y: np.ndarray
) -> TargetEncoding:
    """Return the encoding for a sample, which may lack some labels."""
    classes, factors = np.asarray(targets.classes), targets.class_weight
    there = np.isin(classes, y)
    classes = classes[there]
    if len(classes) < 2:
        raise TooFewError(
            f"alpha='cv' looks at {len(y)} rows, and all have the label {classes[0]!r}: choose "
            "alpha yourself"
        )
    if factors is not None:
        factors = tuple(np.array(factors)[there].tolist())
    loss = estimator._loss().for_classes(len(classes))
    return replace(targets, loss=loss, classes=classes, class_weight=factors)


def _folds(y: np.ndarray, targets: TargetEncoding) -> NDArray[np.intp]:
    """Return the fold that holds out each row, stratified; single rows of a label have none."""
    n = len(y)
    if n < FOLDS * _FEWEST:
        raise TooFewError(
            f"alpha='cv' holds {1 / FOLDS:.0%} of the rows out, and there are {n}: give X_val and "
            "y_val, or choose alpha yourself"
        )
    order, single = np.random.default_rng(0).permutation(n), np.zeros(n, bool)
    if targets.classes is not None and not targets.multilabel:
        codes = np.searchsorted(targets.classes, y)
        order = order[np.argsort(codes[order], kind="stable")]
        single = (np.bincount(codes) == 1)[codes]
    fold = np.empty(n, np.intp)
    fold[order] = np.arange(n) % FOLDS
    fold[single] = -1
    return fold


def _some(rows: Rows, at: np.ndarray | slice) -> Rows:
    X, y, weight = rows
    return X[at], y[at], None if weight is None else weight[at]
