"""The strength of a linear model's penalty, chosen on rows that are held out.

Owns which rows those are, and the order in which strengths are tried. It knows nothing of how one
fit runs: it fits copies of the estimator, in threads of this process, to rows from all partitions,
which are all there are where these are not many. A strength is a multiple of that of "auto", one
over the rows, since what a penalty is worth beside n rows goes as alpha times n.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from dps.cluster.base import Cluster
from dps.cluster.choice import in_this_process
from dps.data.blocks import as_rows
from dps.data.inspection import WIDE, DataSummary
from dps.data.spread import some_of
from dps.data.targets import as_targets

#: Stored values of X that are looked at, over all partitions.
_SAMPLED = 1 << 21
#: Share of the rows that are held out, and the fewest of both parts.
_HELD_OUT, _FEWEST = 0.2, 5
#: The share of the loss that another power of ten must gain, and the powers that are tried.
_GAIN, _POWERS = 1e-2, 8
#: How much less exact than the last fit those are that are compared.
_ROUGH = 100

Rows = tuple[Any, NDArray[Any], NDArray[Any] | None]


def choose_alpha(
    estimator: Any, cluster: Cluster, summary: DataSummary, seed: int
) -> tuple[float, list[tuple[float, float]]]:
    """The best multiple of "auto", and each that was tried with its loss on held-out rows.

    Parameters
    ----------
    estimator : estimator
    cluster : Cluster
        Which holds the rows, encoded: those to train on first, then those given for validation.
    summary : DataSummary
    seed : int
        Draws the rows that are held out.

    Raises
    ------
    ValueError
        There are too few rows.
    """
    share = min(1.0, _SAMPLED / max(1, summary.elements))
    trained = len(summary.rows)
    rows = _gathered(cluster, range(trained), share)
    if summary.validation:
        held = _gathered(cluster, range(trained, trained + len(summary.validation)), share)
    else:
        rows, held = _split(rows, estimator._classification, seed)
    sparse = scipy.sparse.issparse(rows[0])
    if sparse and summary.standards is not None:  # whose numbers are columns like the others now
        rows, held = ((_scaled(X, summary.standards[1]), y, w) for X, y, w in (rows, held))
    model = clone(estimator).set_params(
        alpha="auto", standardize=estimator.standardize and not sparse, mode="sync", shuffle=True,
        n_replicas=1, encoder="auto",
        checkpoint=None, client=None, server=None, scoring="loss", verbose=0, random_state=seed,
        tol=None if estimator.tol is None else _ROUGH * estimator.tol,
        # A start helps L-BFGS, and hinders the steps that text takes.
        warm_start=not (sparse and rows[0].shape[1] >= WIDE),
    )  # fmt: skip
    if hasattr(model, "_skl_callbacks"):
        del model._skl_callbacks

    def loss_at(times: float) -> float:
        model._alpha_times = times
        with in_this_process(), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            X, y, weight = held
            model.fit(*rows, X_val=X, y_val=y, sample_weight_val=weight)
        last = model.history_[-1]["validation_loss"]
        return float(model.best_loss_ if estimator.early_stopping else last)

    return search(loss_at)


def search(loss_at: Callable[[float], float]) -> tuple[float, list[tuple[float, float]]]:
    """The strength of least loss: by powers of ten from one on, then by the root beside the best.

    Weaker ones are tried while they gain, else stronger ones; the root is that between the best
    and the better of its neighbours.

    Examples
    --------
    >>> best, seen = search(lambda strength: (np.log10(strength) + 1.4) ** 2)
    >>> round(best, 4), [round(strength, 4) for strength, _ in seen]
    (0.0316, [1.0, 0.1, 0.0316, 0.01])
    """
    found = {0.0: loss_at(1.0)}

    def gains(power: float, than: float) -> bool:
        found[power] = loss_at(10.0**power)
        return found[power] < found[than] - _GAIN * abs(found[than])

    for direction in (-1.0, 1.0):
        power = 0.0
        while abs(power) < _POWERS and gains(power + direction, power):
            power += direction
        if power:
            break
    best = min(found, key=found.__getitem__)
    if max(found.values()) - found[best] > _GAIN * abs(found[best]):  # else all are as good
        beside = min({best - 1.0, best + 1.0} & found.keys(), key=found.__getitem__)
        gains((best + beside) / 2, best)
        best = min(found, key=found.__getitem__)
    return 10.0**best, [(10.0**power, found[power]) for power in sorted(found, reverse=True)]


def _gathered(cluster: Cluster, numbers: Sequence[int], share: float) -> Rows:
    """Some rows of partitions, put together."""
    parts = [part for part in cluster.map(some_rows, numbers, share=share) if part is not None]
    Xs, ys, weights = zip(*parts, strict=True)
    sparse = any(scipy.sparse.issparse(X) for X in Xs)
    X = scipy.sparse.vstack([scipy.sparse.csr_array(X) for X in Xs], "csr") if sparse else None
    weight = None if weights[0] is None else np.concatenate(weights)
    return np.vstack(Xs) if X is None else X, np.concatenate(ys), weight


def some_rows(X: Any, y: Any, weight: Any, *, share: float) -> Rows | None:
    """A share of the rows of a partition, from all over it; None where it has none."""
    X = as_rows(X)
    rows = X.shape[0]
    if not rows:
        return None
    some = some_of(rows, max(1, round(share * rows)))
    X = X.iloc[some].to_numpy() if hasattr(X, "iloc") else X[some]
    return X, as_targets(y)[some], None if weight is None else as_targets(weight)[some]


def _split(rows: Rows, classification: bool, seed: int) -> tuple[Rows, Rows]:
    """Rows to train on, with one of each class at least, and those that are held out."""
    X, y, weight = rows
    n = len(y)
    held = np.zeros(n, bool)
    held[np.random.default_rng(seed).permutation(n)[: round(_HELD_OUT * n)]] = True
    if classification and y.ndim == 1:
        held[np.unique(y, return_index=True)[1]] = False
    if min(held.sum(), n - held.sum()) < _FEWEST:
        raise ValueError(
            f"alpha='cv' holds {_HELD_OUT:.0%} of the rows out, and there are {n}: give X_val and "
            "y_val, or choose alpha yourself"
        )
    train, out = (
        (X[at], y[at], None if weight is None else weight[at])
        for at in (np.flatnonzero(~held), np.flatnonzero(held))
    )
    return train, out


def _scaled(X: Any, deviation: NDArray[np.float64]) -> Any:
    """CSR whose columns have been divided by their deviations."""
    return type(X)((X.data / deviation[X.indices].astype(X.dtype), X.indices, X.indptr), X.shape)
