"""Training by L-BFGS: each step from the gradient of all rows.

It is the same in every mode, and all replicas wait for each other; in async it comes after
stochastic steps. A pass over the rows is one epoch: every rank sums the gradient of its rows
at the same point, the channel brings the sums together, rank 0 decides on the next point and
hands it to the others. Ranks therefore hold identical bits also on unlike processors. A crash
at any point leaves the snapshot of the last closed epoch, which holds the best point so far.

As in "A Reliable Effective Terascale Linear Learning System" (Agarwal et al., 2014), but
for stochastic epochs in front: steps taken where features vary alike made them pointless
(measured on the flights of ``tests/benchmarks``: one took as long as nine passes and
saved five). In front is the same search over a part of the rows, as in "Batch-Expansion
Training" (Derezinski et al., 2018), where that part says enough of each parameter.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dps._cores import one_thread_each
from dps._kernels.coordinates import Coordinates
from dps._runtime.shared.activity import COMPUTE, PUSH
from dps.data.feed.cuts import Source
from dps.errors import NonFiniteError
from dps.models import Model
from dps.models.base import WithFeatures
from dps.training.epochs.records import EpochRecord, EpochReport
from dps.training.lbfgs.descent import DescentStep, Search
from dps.training.lbfgs.pieces import Pieces
from dps.training.replica.channel import Channel, raise_unless_ran
from dps.training.replica.validation import Validation

#: Stored values of X, of all ranks, from which the spread of the features is estimated. Rare
#: columns need many: on the flights half of them took five passes more.
_SAMPLED = 1 << 22
#: Features up to which their products are looked at, and over how many rows: so many products, at
#: least so many rows a feature. Some rows of a stream are copied, so the number has a bound.
_MOST_MIXED, _PRODUCTS, _ROWS_A_FEATURE = 256, 1 << 24, 8
#: One row of so many is searched first, where that leaves so many rows a parameter.
_SHARES, _ROWS_A_PARAMETER = (256, 16), 256


@dataclass(frozen=True)
class FullBatch:
    """The options of training on all rows at once."""

    l2: float  # factors of ``|w|_2^2 / 2`` and ``|w|_1`` over the penalised parameters
    l1: float
    tolerance: float  # the gain in the objective that another pass must promise
    relative: float  # the same, as a share of the objective, where that is less
    patience: int  # passes in a row that each gain less than `least` and end the fit
    least: float  # A gain in the objective that counts
    width: float  # of the parabolas that stand for kinks of the loss at first; 0: it has none
    near: float  # the share of the objective by which these may miss the least value in the end
    row_elements: float  # stored values of X a row
    #: (2, n_features) mean and variance of the features over all rows, where they are known.
    moments: NDArray[np.float64] | None = None


def train_full_batch(
    how: FullBatch,
    *,
    channel: Channel,
    model: Model,
    source: Source,
    state_rows: int,
    decide: Callable[[int], Any],
    first: int = 0,
    validate: Callable[[Model, NDArray[np.floating]], Validation] | None = None,
) -> None:
    """Minimise until nothing is gained any more, or until the last epoch.

    channel: has no pushes under way.
    source: the rank's rows.
    state_rows: rows of optimizer state in a snapshot; there is none here.
    decide: makes the stopping rule of an epoch's number, see :meth:`Channel.end_epoch`.
    first: the first epoch; stochastic steps have made those before it.
    validate: scores the rank's rows for validation.
    """
    keep = np.zeros((1 + state_rows, model.layout.size), model.dtype)
    kept_loss, judged = 0.0, False
    validation: Validation = (0.0, 0.0, ())
    rows = Pieces.of(model, source, how.row_elements, channel)
    descent = _Descent(how, channel, model, rows, best=keep[0])
    descent.search_some()
    # The start is looked at before the first epoch, so that each epoch is one step.
    for epoch in itertools.count(first - 1):
        began = time.monotonic()
        loss, accepted = descent.step()
        if getattr(model, "draws", False):  # of a module it is known only now
            raise ValueError(
                "the model draws by chance (dropout?), so that passes over all rows find no "
                "optimum: use another optimizer than 'lbfgs'"
            )
        if accepted:
            kept_loss, judged = loss, False
        if epoch < first:
            channel.begin_epoch(first)
            continue
        if validate is not None and not judged:
            validation, judged = validate(model, keep[0]), True
            channel.activity.lap(COMPUTE)
        missed, weight, scores = validation
        report = EpochReport(
            loss_sum=kept_loss,
            rows=rows.count,
            validation_sum=missed,
            validation_weight=weight,
            seconds=time.monotonic() - began,
            stale_sum=0.0,
            stale_max=0.0,
            steps=1,
            full_batch=1,
            converged=int(descent.enough),
        )
        record = channel.end_epoch(epoch, report.row(scores), decide(epoch), keep)
        channel.activity.lap(PUSH)
        channel.begin_epoch(epoch + 1)
        if record is not None and EpochRecord.from_row(record).last:
            return


class _Descent:
    """The search as all ranks take part in it.

    point: (n,) array, where the ranks evaluate next; the same bits on all.
    enough: whether rank 0 expects nothing more; the same on all.
    best: (n,) array, where the best point is put whenever there is a new one.
    """

    def __init__(
        self,
        how: FullBatch,
        channel: Channel,
        model: Model,
        rows: Pieces,
        best: NDArray[np.floating],
    ) -> None:
        self._channel, self._best = channel, best
        self.point = np.array(channel.pull())
        coordinates = _coordinates(model, channel, rows, how)
        self._penalised = np.zeros(len(self.point), bool)
        for first, last, penalised in model.layout.segments(0, len(self.point)):
            self._penalised[first:last] = penalised
        counted = self._penalised.astype(np.float64)
        precision = 4 * float(np.finfo(self.point.dtype).eps)
        self._search = Search(  # of rank 0 only
            self.point, coordinates, how.l2 * counted, how.tolerance, precision, how.least,
            how.patience, relative=how.relative, l1=how.l1 * counted if how.l1 else None,
            width=how.width, near=how.near,
        )  # fmt: skip
        channel.activity.lap(COMPUTE)
        self._begin(rows, 1)

    def _begin(self, rows: Pieces, share: int) -> None:
        """Take one row of `share`; go on where `point` is."""
        self.enough = False
        self._rows = rows
        self._rows_of_all = float(self._channel.reduce([rows.count])[0])
        self._search.resume(self._rows_of_all, share)
        self._steps = DescentStep(
            rows.passes(), self._channel.aligned(), self._search, self.point, self._best
        )

    def _resume(self, rows: Pieces, share: int) -> None:
        """Take other rows, and go on from the best point."""
        self._begin(rows, share)
        best = np.empty_like(self.point)
        self._search.write(best)
        self.point[:] = self._channel.broadcast(best, [])[0]

    def search_some(self) -> None:
        """Minimise over ever more of the rows, while few of them say enough of each parameter.

        Only where training starts from a constant: what was trained before knows better. The
        minimum over some rows is as far from that over all as chance has it, about the number
        of parameters over twice the rows, so that little is to be gained beyond.
        """
        if self.point[self._penalised].any():
            return
        rows, rows_of_all, searched = self._rows, self._rows_of_all, False
        for share in _SHARES:
            enough = rows_of_all >= share * _ROWS_A_PARAMETER * len(self.point)
            # Ranks go on together, or not.
            if enough and not self._channel.reduce([not rows.can_be_thinned(share)])[0]:
                (self._resume if searched else self._begin)(rows.thinned(share), share)
                searched = True
                for _ in range(share):  # together as long as a pass over all rows
                    self.step()
                    if self.enough:
                        break
        if searched:
            self._resume(rows, 1)

    def step(self) -> tuple[float, bool]:
        """Evaluate at the point, and choose the next.

        Returns the sum of losses over the rank's rows.
        Returns whether the point is the best so far.
        """
        ending = self._steps.run()
        if ending == "start":
            raise _no_start(self._channel)
        raise_unless_ran(ending, self._channel.rank, self._channel.steps)
        self.enough = self._steps.enough
        return self._steps.loss, self._steps.accepted


def _no_start(channel: Channel) -> NonFiniteError:
    return NonFiniteError(
        "the loss or its gradient is NaN or infinite where the search starts; scale the features",
        step=channel.steps,
    )


def _coordinates(model: Model, channel: Channel, rows: Pieces, how: FullBatch) -> Coordinates:
    """Coordinates in which the objective curves alike, where the model has features."""
    if not hasattr(model, "standardised"):
        return Coordinates(model.layout.size)
    featured = cast(WithFeatures, model)
    width = featured.n_features
    rows_of_all = float(channel.reduce([rows.count])[0])
    if how.moments is not None:
        mean, variance = how.moments
    else:
        share = max(1, round(rows_of_all * rows.row_elements / _SAMPLED))
        mean, variance = _moments(rows.thinned(share), channel, model, width)
    products = None
    if not how.l1 and 1 < width <= _MOST_MIXED:
        deviation = np.sqrt(np.where(variance > 0, variance, 1.0))
        products = _correlations(rows, rows_of_all, channel, model, mean, deviation)
    if channel.rank > 0:  # which takes part in the sums alone
        products = None
    with nullcontext() if products is None else one_thread_each():
        return featured.standardised(mean, variance, how.l2, how.width, products)


def _moments(
    rows: Pieces, channel: Channel, model: Model, width: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and variance of each feature."""

    def moments(centre: NDArray[np.float64] | None) -> list[NDArray[np.float64]]:
        sums = rows.moments(width, centre)
        return [_over_ranks(values, rows.count, model, channel) for values in sums]

    mean, square = moments(None)
    variance = square - mean**2
    # If the difference is small, much of it is rounding.
    if (variance < 100 * np.finfo(model.dtype).eps * square).any():
        variance = moments(mean)[1]
    return mean, variance


def _correlations(
    rows: Pieces,
    rows_of_all: float,
    channel: Channel,
    model: Model,
    mean: NDArray[np.float64],
    deviation: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return correlations of features, from few enough rows to cost little beside a pass."""
    width = len(mean)
    few = min(_PRODUCTS / width**2, _SAMPLED / width)
    enough = max(few, _ROWS_A_FEATURE * width)
    share = max(1, int(rows_of_all / enough))
    some = rows.thinned(share) if share > 1 else rows
    lower = np.tril_indices(width)
    products = np.zeros((width, width))
    sums = some.products(mean, deviation)[lower]
    products[lower] = _over_ranks(sums, some.count, model, channel)
    products += np.tril(products, -1).T
    square = np.diagonal(products).copy()
    # Of rare features some rows say little.
    known = (square > 0.5) & (square < 2)
    root = np.sqrt(np.where(known, square, np.inf))
    products /= np.outer(root, root)
    if share > 1:
        products *= 1 - (width * share / rows_of_all) ** 2
    return products


def _over_ranks(
    values: NDArray[np.float64], count: int, model: Model, channel: Channel
) -> NDArray[np.float64]:
    """The mean of any number of values over the rows of all ranks."""
    size, means = model.layout.size, np.empty_like(values)
    for first in range(0, len(values), size):
        some = values[first : first + size]
        padded = np.zeros(size, model.dtype)
        padded[: len(some)] = some
        means[first : first + size] = channel.mean(padded, count)[0][: len(some)]
    return means
