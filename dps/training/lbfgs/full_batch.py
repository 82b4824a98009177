"""Training by L-BFGS: each step uses the gradient of all rows.

It works alike in every mode, and all replicas wait for each other; in async it follows stochastic
steps. One pass over the rows is an epoch: every rank sums the gradient of its rows at the same
point, the channel adds the sums, and rank 0 chooses the next point and broadcasts it. Therefore all
ranks hold the same bits, even on different processors. A crash at any point leaves the snapshot of
the last closed epoch, which holds the best point so far.

The method is that of "A Reliable Effective Terascale Linear Learning System" (Agarwal et al.,
2014), except for the stochastic epochs before it. In coordinates in which all features vary alike
these do not pay: on the flights of ``tests/benchmarks`` one took as long as nine passes and saved
five. Instead the search begins on a part of the rows, as in "Batch-Expansion Training" (Derezinski
et al., 2018), if that part has enough rows per parameter.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

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

#: Stored values of X, of all ranks, that estimate the spread of the features. Rare columns need
#: many: on the flights half as many cost five more passes.
_SAMPLED = 1 << 22
#: The largest number of features whose products are computed, the number of products, and the least
#: number of rows per feature. Rows of a stream are copied, so their number is bounded.
_MOST_MIXED, _PRODUCTS, _ROWS_A_FEATURE = 256, 1 << 24, 8
#: The search begins on one row per share, if that leaves enough rows per parameter.
_SHARES, _ROWS_A_PARAMETER = (256, 16), 256


@dataclass(frozen=True)
class FullBatch:
    """Options of passes over all rows."""

    l2: float  # factors of ``|w|_2^2 / 2`` and ``|w|_1`` over the penalised parameters
    l1: float
    tolerance: float  # the expected gain in the objective below which no further pass is made
    relative: float  # the same as a share of the objective, if that is smaller
    patience: int  # consecutive passes with a gain below `least` that end the fit
    least: float  # The smallest gain in the objective that counts.
    width: float  # width of the parabolas that first replace kinks of the loss; 0: it has none
    # Largest excess over the minimum that these parabolas may cause, as a share of the objective.
    near: float
    row_elements: float  # stored values of X per row
    #: (2, n_features) means and variances of the features over all rows, if known.
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
    """Minimise the objective until no further gain is expected, or until the last epoch.

    channel: without pushes in progress.
    source: the rank's rows.
    state_rows: rows of optimizer state in a snapshot, which has none here.
    decide: makes the stopping rule for the number of an epoch, see :meth:`Channel.end_epoch`.
    first: number of the first epoch; stochastic steps have made the earlier ones.
    validate: computes the score of the rank's validation rows.
    """
    keep = np.zeros((1 + state_rows, model.layout.size), model.dtype)
    kept_loss, judged = 0.0, False
    validation: Validation = (0.0, 0.0, ())
    rows = Pieces.of(model, source, how.row_elements, channel)
    descent = _Descent(how, channel, model, rows, best=keep[0])
    descent.search_some()
    # The start is evaluated before the first epoch, so that each epoch is one step.
    for epoch in itertools.count(first - 1):
        began = time.monotonic()
        loss, accepted = descent.step()
        if getattr(model, "draws", False):  # a module tells this only after a forward pass
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
    """The search, in which all ranks take part.

    point: (n,) array, the next point to evaluate; the same bits on all ranks.
    enough: whether rank 0 expects no further gain; the same on all ranks.
    best: (n,) array that receives the best point.
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
        self._search = Search(  # on rank 0 only
            self.point, coordinates, how.l2 * counted, how.tolerance, precision, how.least,
            how.patience, relative=how.relative, l1=how.l1 * counted if how.l1 else None,
            width=how.width, near=how.near,
        )  # fmt: skip
        channel.activity.lap(COMPUTE)
        self._begin(rows, 1)

    def _begin(self, rows: Pieces, share: int) -> None:
        """Begin with one row in `share`, at `point`."""
        self.enough = False
        self._rows = rows
        self._rows_of_all = float(self._channel.reduce([rows.count])[0])
        self._search.resume(self._rows_of_all, share)
        self._steps = DescentStep(
            rows.passes(), self._channel.aligned(), self._search, self.point, self._best
        )

    def _resume(self, rows: Pieces, share: int) -> None:
        """Continue with other rows from the best point."""
        self._begin(rows, share)
        best = np.empty_like(self.point)
        self._search.write(best)
        self.point[:] = self._channel.broadcast(best, [])[0]

    def search_some(self) -> None:
        """Minimise over growing parts of the rows while a part has enough rows per parameter.

        This applies only if training starts from a constant, since an earlier fit is a better
        start. The minimum over a part differs from that over all rows by chance, by about the
        number of parameters over twice the rows, so a more exact search of a part gains little.
        """
        if self.point[self._penalised].any():
            return
        rows, rows_of_all, searched = self._rows, self._rows_of_all, False
        for share in _SHARES:
            enough = rows_of_all >= share * _ROWS_A_PARAMETER * len(self.point)
            # All ranks continue, or none.
            if enough and not self._channel.reduce([not rows.can_be_thinned(share)])[0]:
                (self._resume if searched else self._begin)(rows.thinned(share), share)
                searched = True
                for _ in range(share):  # together they cost as much as one pass over all rows
                    self.step()
                    if self.enough:
                        break
        if searched:
            self._resume(rows, 1)

    def step(self) -> tuple[float, bool]:
        """Evaluate the point and choose the next one.

        Returns the sum of losses over the rank's rows, and whether the point is the best so far.
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
    """Return coordinates in which the objective has similar curvature in all directions."""
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
    if channel.rank > 0:  # it takes part in the sums only
        products = None
    return featured.standardised(mean, variance, how.l2, how.width, products)


def _moments(
    rows: Pieces, channel: Channel, model: Model, width: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean and variance of each feature."""

    def moments(centre: NDArray[np.float64] | None) -> list[NDArray[np.float64]]:
        sums = rows.moments(width, centre)
        return [_over_ranks(values, rows.count, model, channel) for values in sums]

    mean, square = moments(None)
    variance = square - mean**2
    # A small difference consists mostly of rounding errors.
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
    """Return correlations of features, from a sample of rows that costs little beside a pass."""
    width = len(mean)
    few = min(_PRODUCTS / width**2, _SAMPLED / width)
    enough = max(few, _ROWS_A_FEATURE * width)
    share = max(1, int(rows_of_all / enough))
    some = rows.thinned(share) if share > 1 else rows
    lower = _lower(width)
    products = np.zeros((width, width))
    sums = some.products(mean, deviation)[lower]
    products[lower] = _over_ranks(sums, some.count, model, channel)
    products += np.tril(products, -1).T
    square = np.diagonal(products).copy()
    # A sample says little about rare features.
    known = (square > 0.5) & (square < 2)
    root = np.sqrt(np.where(known, square, np.inf))
    products /= np.outer(root, root)
    if share > 1:
        products *= 1 - (width * share / rows_of_all) ** 2
    return products


@lru_cache(maxsize=8)
def _lower(width: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows and columns of a triangle of a square matrix."""
    return np.tril_indices(width)


def _over_ranks(
    values: NDArray[np.float64], count: int, model: Model, channel: Channel
) -> NDArray[np.float64]:
    """Return means of values over the rows of all ranks."""
    size, means = model.layout.size, np.empty_like(values)
    for first in range(0, len(values), size):
        some = values[first : first + size]
        padded = np.zeros(size, model.dtype)
        padded[: len(some)] = some
        means[first : first + size] = channel.mean(padded, count)[0][: len(some)]
    return means
