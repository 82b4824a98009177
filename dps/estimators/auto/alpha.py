"""The choice of a linear model's penalty by held-out rows: the data and the fits behind it.

Copies of the estimator are fitted in threads of this process to a sample of rows from all
partitions. A strength is a multiple of that of "auto", one over the rows, because the effect of a
penalty depends on alpha times rows. `Race` chooses which strengths to try.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from sklearn.base import clone

from dps.cluster.choice import in_this_process
from dps.data.feed.blocks import as_rows
from dps.data.feed.targets import TargetEncoding, as_targets
from dps.data.survey.rows import WIDE, DataSummary
from dps.data.survey.spread import some_of
from dps.estimators.auto.race import Losses, Penalty, Race
from dps.losses.base import as_columns

if TYPE_CHECKING:
    from dps.cluster.base import Cluster
    from dps.estimators.base.estimator import DistributedEstimator

#: Stored values of X in the sample.
_SAMPLED = 1 << 21
#: Number of folds, and the least rows of one.
_FOLDS, _FEWEST = 5, 2
#: Folds that "auto" and "cv" look at, and standard errors by which they want to be sure.
_LOOKS = {"auto": (1, 3.0), "cv": (_FOLDS, 2.0)}
#: The fits that are compared end at so many times `tol`, and at this tolerance at most.
_ROUGH, _ROUGHEST = 100, 1e-2
#: Groups of held-out rows.
_GROUPS = 512
#: Parameters per row from which "auto" looks at held-out rows, and the fewest rows for that.
_MANY, _ENOUGH = 0.1, 100

Rows = tuple[Any, np.ndarray, np.ndarray | None]


class TooFewError(ValueError):
    """There are too few rows to hold some out, or all have the same label."""


def asks_evidence(parameters: int, rows: int) -> bool:
    """True if held-out rows must say how strong a penalty is to be: parameters may fit the rows.

    Examples
    --------
    >>> asks_evidence(20, 2_000), asks_evidence(400_000, 250_000), asks_evidence(40, 60)
    (False, True, False)
    """
    return rows >= _ENOUGH and parameters > _MANY * rows


def choose_alpha(
    estimator: DistributedEstimator,
    cluster: Cluster,
    summary: DataSummary,
    targets: TargetEncoding,
    seed: int,
) -> tuple[float, bool, list[tuple[float, float, bool]]]:
    """Choose a multiple of the strength of "auto", and whether to standardize columns.

    cluster: holds the encoded rows: partitions to train on, then those given for validation.
    seed: draws the folds.
    Returns list of (multiple, mean loss of held-out rows, standardize).
    Raises TooFewError: see there.
    """
    rows, held = _looked_at(cluster, summary)
    sparse, standards = scipy.sparse.issparse(rows[0]), summary.standards
    kinds, common = [bool(estimator.standardize)], 1.0
    if estimator.standardize == "auto" and not sparse and standards is not None:
        common = _common_variance(standards[1])
        kinds = [True, False] if 0 < common < np.inf else [True]
    if sparse and kinds[0] and standards is not None:  # an encoded dataframe
        rows = _scaled(rows, standards[1])
        held = held and _scaled(held, standards[1])
    if targets.classes is not None and not targets.multilabel:
        targets = _of_labels(estimator, targets, rows[1])
        held = held and _some(held, np.isin(held[1], np.asarray(targets.classes)))
    numbers = np.empty(0, np.intp) if held else _folds(rows[1], targets, seed)
    # L-BFGS profits from a start, and strong penalties are faster. Text needs neither.
    starts = not (sparse and rows[0].shape[1] >= WIDE)
    n_folds, sure = _LOOKS[estimator.alpha]
    n_folds = 1 if held else n_folds
    models = [_copy(estimator, targets, seed).set_params(warm_start=starts) for _ in range(n_folds)]

    def times(penalty: Penalty) -> float:
        return 10.0**penalty.power * (common if penalty.standardize != kinds[0] else 1.0)

    def losses_of(penalty: Penalty, fold: int) -> Losses:
        train = rows if held else _some(rows, numbers != fold)
        X, y, weight = held or _some(rows, numbers == fold)
        model = models[fold]
        model.standardize, model._alpha_times = penalty.standardize and not sparse, times(penalty)
        stops = {"X_val": X, "y_val": y, "sample_weight_val": weight}
        with in_this_process(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the final fit warns
            model.fit(*train, **(stops if estimator._stops_early else {}))
            return _losses(model._apply(X, np.ascontiguousarray), y, weight, targets)

    race = Race(losses_of, n_folds, stronger_first=starts, sure=sure)
    best = race.run(kinds)
    tried = [(times(one), loss, one.standardize) for one, loss in race.tried(best)]
    return times(best), best.standardize, tried


def _copy(estimator: DistributedEstimator, targets: TargetEncoding, seed: int) -> Any:
    """Copy an estimator without callbacks, checkpoints, client and server."""
    tol = estimator.tol
    model = clone(estimator).set_params(
        alpha="auto", mode="sync", shuffle=True, n_replicas=1, encoder="auto",
        checkpoint=None, client=None, server=None, scoring="loss", verbose=0, random_state=seed,
        tol=None if tol is None else max(tol, min(_ROUGH * tol, _ROUGHEST)),
    )  # fmt: skip
    if hasattr(model, "_skl_callbacks"):
        del model._skl_callbacks
    if targets.class_weight is not None:  # that of all rows
        labels: Any = targets.classes
        model.class_weight = dict(zip(labels.tolist(), targets.class_weight, strict=True))
    return model


def _common_variance(deviations: NDArray[np.float64]) -> float:
    """Mean variance of the columns that vary; infinite if it overflows."""
    varying = deviations[deviations != 1]
    with np.errstate(over="ignore"):
        return float(np.mean(varying**2)) if len(varying) else 1.0


def _losses(
    raw: NDArray[np.floating], y: np.ndarray, weight: np.ndarray | None, targets: TargetEncoding
) -> Losses:
    """Add up losses of raw outputs in random groups."""
    y, weight = targets.encode(y, weight, raw.dtype)
    order = np.random.default_rng(0).permutation(len(y))
    raw, y, weights = raw[order], y[order], np.ones(len(y), raw.dtype)
    if weight is not None:
        weights = weight[order]
    loss, out = targets.loss, np.empty_like(raw)
    ends = np.linspace(0, len(y), min(len(y), _GROUPS) + 1).astype(np.intp)
    groups = [slice(start, stop) for start, stop in pairwise(ends)]
    lost = [loss.evaluate(y[at], raw[at], weights[at], out[at]) for at in groups]
    found = Losses(np.array(lost), np.add.reduceat(weights.astype(np.float64), ends[:-1]))
    if targets.classes is None:
        exact = np.require(loss.start(as_columns(y)), raw.dtype, ["C", "A"])
        return found._replace(least=loss.evaluate(y, exact, weights, out))
    wrong = loss.evaluate(_next_likely(targets, y, raw), raw, None, out) / max(1, len(y))
    return found._replace(wrong=np.array([wrong]))


def _next_likely(
    targets: TargetEncoding, y: NDArray[np.floating], raw: NDArray[np.floating]
) -> NDArray[np.floating]:
    """Targets of the most likely wrong label of each row; of several labels one is flipped."""
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


def _looked_at(cluster: Cluster, summary: DataSummary) -> tuple[Rows, Rows | None]:
    """Sample rows to train on, and rows given for validation."""
    share = min(1.0, _SAMPLED / max(1, summary.elements))
    trained = len(summary.rows)
    given = range(trained, trained + len(summary.validation))
    held = _gathered(cluster, given, share) if given else None
    return _gathered(cluster, range(trained), share), held


def _gathered(cluster: Cluster, numbers: Sequence[int], share: float) -> Rows:
    """Sample rows of partitions in one piece."""
    parts = [part for part in cluster.map(some_rows, numbers, share=share) if part is not None]
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


def _of_labels(
    estimator: DistributedEstimator, targets: TargetEncoding, y: np.ndarray
) -> TargetEncoding:
    """The encoding for a sample, which may lack some labels."""
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


def _folds(y: np.ndarray, targets: TargetEncoding, seed: int) -> NDArray[np.intp]:
    """The fold that holds each row out, stratified by label; the only row of a label has none."""
    n = len(y)
    if n < _FOLDS * _FEWEST:
        raise TooFewError(
            f"alpha='cv' holds {1 / _FOLDS:.0%} of the rows out, and there are {n}: give X_val and "
            "y_val, or choose alpha yourself"
        )
    order, single = np.random.default_rng(seed).permutation(n), np.zeros(n, bool)
    if targets.classes is not None and not targets.multilabel:
        codes = np.searchsorted(targets.classes, y)
        order = order[np.argsort(codes[order], kind="stable")]
        single = (np.bincount(codes) == 1)[codes]
    fold = np.empty(n, np.intp)
    fold[order] = np.arange(n) % _FOLDS
    fold[single] = -1
    return fold


def _some(rows: Rows, at: np.ndarray) -> Rows:
    X, y, weight = rows
    return X[at], y[at], None if weight is None else weight[at]


def _scaled(rows: Rows, deviation: NDArray[np.float64]) -> Rows:
    """Divide columns of CSR rows by their deviations."""
    X, y, weight = rows
    data = X.data / deviation[X.indices].astype(X.dtype)
    return type(X)((data, X.indices, X.indptr), X.shape), y, weight
