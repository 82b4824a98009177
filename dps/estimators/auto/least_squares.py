"""Least squares without training: the optimum from products of columns."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from dps._cores import usable_cores
from dps.data.feed.blocks import features_of
from dps.data.survey.products import Columns, mean_products, products_of, share_of
from dps.data.survey.spread import Moments
from dps.estimators.auto.compare import Rows, by_fold, ends_of_groups, in_order
from dps.estimators.auto.passes import l1_share
from dps.estimators.auto.race import Losses
from dps.losses import SquaredError
from dps.losses.base import as_columns
from dps.models.least_squares import LeastSquares
from dps.models.linear import ROUNDINGS
from dps.training.position import InitialState, Position, Solution

if TYPE_CHECKING:
    from dps.data.feed.targets import TargetEncoding
    from dps.estimators.fit.survey import Survey
    from dps.models.linear import LinearModel
    from dps.training.job import Job

#: Largest number of columns: for more, passes over the rows are faster.
_WIDEST = 512
#: Rows that are predicted together.
_ROWS = 4096
#: Values between these have squares that neither overflow nor vanish.
_LEAST, _MOST = 1e-100, 1e100


def has_products(survey: Survey) -> bool:
    """True if products of the columns give the optimum at little cost."""
    moments, summary = survey.summary.moments, survey.summary
    if (
        type(survey.targets.loss) is not SquaredError
        or moments is None
        or summary.sparse
        or not len(moments.columns) == summary.n_features <= _WIDEST
    ):
        return False
    sizes = np.concatenate(
        [np.hypot(each.mean, np.sqrt(each.variance)) for each in (moments, summary.targets)]
    )
    return bool(((sizes == 0) | ((sizes > _LEAST) & (sizes < _MOST))).all())


def solved(survey: Survey, job: Job) -> Job:
    """Return the job with the optimum as its start; unchanged if that is not found."""
    began = time.monotonic()
    survey.loading.phase = "summing products"
    summary, cluster, model = survey.summary, survey.cluster, cast("LinearModel", job.model)
    assert summary.moments is not None
    trained = len(summary.rows)
    columns = _columns(summary.moments, summary.targets, model.fit_intercept, model.dtype)
    sums = cluster.sum(
        products_of, range(trained), columns=columns, threads=min(cluster.threads().values())
    )
    found = _optimum(sums, columns, model.fit_intercept, model.scale, job.l1, job.l2)
    if found is None:
        return job
    params = model.initial()
    views = model.layout.views(params)
    views["coef"][:] = found.coef
    if model.fit_intercept:
        centre = 0.0 if model.centre is None else model.centre
        means, of_y = np.split(found.mean, [model.n_features])
        at = (means - centre) / (1.0 if model.scale is None else model.scale)
        views["intercept"][:] = of_y - at @ found.coef
    given = range(trained, trained + len(summary.validation))
    held_out = cluster.map(loss_at, given, model=model, params=params, targets=job.targets)
    begun = job.position.begun
    assert isinstance(begun, InitialState)
    solution = Solution(found.loss, np.sum(held_out, axis=0), time.monotonic() - began)
    return replace(job, position=Position(begun._replace(params=params, solution=solution)))


def _columns(X: Moments, y: Moments, intercept: bool, dtype: Any) -> Columns:
    """Return columns by their deviations; without an intercept by their distances from zero.

    A column of X that varies only by rounding is left out, as in passes over the rows.
    """
    mean, variance = np.concatenate([X.mean, y.mean]), np.concatenate([X.variance, y.variance])
    if intercept:
        least = ROUNDINGS * float(np.finfo(dtype).eps) * np.abs(mean)
        least[len(X.mean) :] = 0.0
        square = np.where(variance > least**2, variance, 0.0)
    else:
        square, mean = variance + mean**2, np.zeros_like(mean)
    unit = np.sqrt(np.where(square > 0, square, np.inf))
    return Columns(mean, unit, len(X.mean), y.weight)


class _Optimum(NamedTuple):
    """The optimum in the units of a model's coefficients and of y."""

    coef: NDArray[np.float64]  # (n_features, n_outputs)
    mean: NDArray[np.float64]  # (n_features + n_outputs,) means of the columns
    loss: float


def _optimum(
    sums: NDArray[np.int64],
    columns: Columns,
    intercept: bool,
    scale: NDArray[np.float64] | None,
    l1: float,
    l2: float,
) -> _Optimum | None:
    """Minimise squared error with penalties; None if that fails.

    sums: from `products_of`.
    scale: (n_features,) array, scales of the columns of X.
    """
    products, off = mean_products(sums)
    if intercept:
        products = products - np.outer(off, off)
    unit = np.where(np.isfinite(columns.unit), columns.unit, 0.0)
    mean = columns.centre + unit * off
    if scale is not None:
        unit[: len(scale)] /= scale
    products = products * np.outer(unit, unit)
    width = columns.width
    problem = LeastSquares(
        products[:width, :width], products[:width, width:], np.diagonal(products)[width:]
    )
    coef = problem.solve(l1, l2)
    return None if coef is None else _Optimum(coef, mean, problem.loss(coef))


def loss_at(
    X: Any, y: Any, weight: Any, *, model: Any, params: Any, targets: TargetEncoding
) -> tuple[float, float]:
    """Return the sums of losses and of weights over a partition's rows."""
    y, weight = targets.encode(y, weight, model.dtype)
    features, loss = features_of(X, model.dtype), 0.0
    for start in range(0, len(y), _ROWS):
        at = slice(start, min(len(y), start + _ROWS))
        raw = model.raw(params, features.rows(at.start, at.stop, None))
        weights = None if weight is None else weight[at]
        loss += targets.loss.evaluate(y[at], raw, weights, np.empty_like(raw))
    return loss, float(len(y) if weight is None else weight.sum(dtype=np.float64))


class HeldOutSquares:
    """Held-out losses for any penalty, from one pass over a sample of the rows.

    rows: sampled training rows.
    held: the user's validation rows, which score; None: some of `rows` do.
    n_folds: largest number of folds.
    Raises TooFewError: there are too few rows.
    """

    def __init__(self, survey: Survey, rows: Rows, held: Rows | None, n_folds: int) -> None:
        estimator, (X, y, weight) = survey.estimator, rows
        self._intercept = bool(estimator.fit_intercept)
        self._share = l1_share(estimator)
        dtype = np.float32 if X.dtype == np.float32 else np.float64
        of_y = Moments.of(as_columns(y), weight, np.float64, np.arange(survey.n_outputs))
        of_X = Moments.of(X, weight, dtype, np.arange(X.shape[1]))
        self._columns = _columns(of_X, of_y, self._intercept, dtype)
        if held is not None:
            self._sums, self._held = [self._products(rows)], [in_order(held)]
            return
        parts = by_fold(rows, survey.targets)
        products = [self._products(part) for part in parts]
        total = np.sum(products, axis=0)
        self._sums = [total - each for each in products[:n_folds]]
        self._held = parts[:n_folds]

    def __len__(self) -> int:
        return len(self._sums)

    def losses(self, times: float, standardize: bool, fold: int) -> Losses:
        """Return the held-out losses for a penalty that is `times` as strong as "auto"."""
        sums, columns, width = self._sums[fold], self._columns, self._columns.width
        products, off = mean_products(sums)
        unit, scale = np.where(np.isfinite(columns.unit), columns.unit, 0.0), None
        if standardize:
            scale = unit * np.sqrt(np.maximum(np.diagonal(products) - off**2, 0.0))
            scale = np.where(scale > 0, scale, 1.0)[:width]
        alpha = times / (columns.weight * share_of(sums))
        found = _optimum(
            sums, columns, self._intercept, scale, alpha * self._share, alpha * (1 - self._share)
        )
        X, y, weight = self._held[fold]
        starts = ends_of_groups(len(y))[:-1]
        weights = np.ones(len(y)) if weight is None else weight.astype(np.float64)
        if found is None:
            return Losses(np.full(len(starts), np.inf), np.add.reduceat(weights, starts))
        slope = found.coef if scale is None else found.coef / scale[:, None]
        missed = as_columns(y) - X @ slope
        if self._intercept:
            missed -= found.mean[width:] - found.mean[:width] @ slope
        lost = weights * np.einsum("ij,ij->i", missed, missed) / 2
        return Losses(np.add.reduceat(lost, starts), np.add.reduceat(weights, starts))

    def of_constant(self) -> None:
        """None: a regression is not compared with a constant, see `Comparison.of_constant`."""

    def _products(self, rows: Rows) -> NDArray[np.int64]:
        return products_of(*rows, columns=self._columns, threads=usable_cores())
