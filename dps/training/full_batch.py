"""Training by L-BFGS: each step from the gradient of all rows.

It is the same in every mode, and all replicas wait for each other. A pass over the rows
is one epoch: every rank sums the gradient of its rows at the same point, the channel
brings the sums together, rank 0 decides on the next point and hands it to the others in
the same way. Ranks therefore hold identical bits also on unlike processors. A crash at
any point leaves the snapshot of the last closed epoch, which holds the best point so far.

As in "A Reliable Effective Terascale Linear Learning System" (Agarwal et al., 2014), but
for stochastic epochs in front: steps taken where features vary alike made them pointless
(measured on the flights of ``tests/benchmarks``: one took as long as nine passes and
saved five).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dps._kernels.moments import column_moments
from dps._kernels.rows import BlockRows
from dps.data.blocks import Block
from dps.errors import NonFiniteError
from dps.models import Model
from dps.models.base import WithFeatures
from dps.modes import Channel
from dps.training.history import EpochRecord, EpochReport
from dps.training.quasi_newton import LBFGS

__all__ = ["FullBatch", "train_full_batch"]

#: Bytes of a piece of X that stay in a core's cache between forward and backward.
_CACHED = 1 << 20
_FEWEST, _MOST = 256, 8192  # rows of a piece
#: Rows after which sums of the model's dtype are added to those in double.
_SUMMED = 1 << 16
_BEAT_EVERY = 0.2  # seconds
#: Stored values of X, of all ranks, from which the spread of the features is estimated. Rare
#: columns need many: on the flights half of them took five passes more.
_SAMPLED = 1 << 22


@dataclass(frozen=True)
class FullBatch:
    """How to train on all rows at once.

    Parameters
    ----------
    l2 : float
        Factor of ``|w|_2^2 / 2`` over the penalised parameters.
    tolerance : float
        The gain in the objective that another pass must promise.
    patience : int
        Passes in a row that each gain less than `least` and end the fit.
    least : float
        A gain in the objective that counts.
    row_elements : float
        Stored values of X a row.
    """

    l2: float
    tolerance: float
    patience: int
    least: float
    row_elements: float


def train_full_batch(
    how: FullBatch,
    *,
    rank: int,
    channel: Channel,
    model: Model,
    blocks: Sequence[Block],
    state_rows: int,
    decide: Callable[[int], Any],
) -> None:
    """Minimise until nothing is gained any more, or until the last epoch.

    Parameters
    ----------
    rank : int
    channel : Channel
        Over which nobody pushes.
    model : Model
    blocks : sequence of Block
        The rank's rows.
    state_rows : int
        Rows of optimizer state in a snapshot; there is none here.
    decide : callable
        From an epoch's number, its stopping rule, see :meth:`Channel.end_epoch`.
    """
    rows = _Pieces(model, blocks, how.row_elements, channel.beat)
    rows_of_all = float(channel.reduce([rows.count])[0])
    point = np.array(channel.pull())
    coordinates = _coordinates(model, channel, rows, rows_of_all, how.l2)
    penalty = np.zeros(len(point))
    for first, last, penalised in model.layout.segments(0, len(point)):
        penalty[first:last] = how.l2 if penalised else 0.0
    precision = 4 * float(np.finfo(point.dtype).eps)
    search = LBFGS(coordinates.point(point), how.tolerance, precision)  # told on rank 0 only
    keep = np.zeros((1 + state_rows, len(point)), point.dtype)
    kept_loss, accepted, enough = 0.0, False, False
    idle, best = 0, np.inf  # of rank 0
    # The start is looked at before the first epoch, so that each epoch is one step.
    for epoch in itertools.count(-1):
        began = time.monotonic()
        loss, gradient = rows.evaluate(point)
        total = float(channel.reduce([loss])[0])
        finite = bool(np.isfinite(total))
        if not finite and epoch < 0:
            raise NonFiniteError("the loss is NaN or infinite where the search starts")
        mean = channel.mean(gradient, rows.count) if finite else None
        accepted = False
        ahead = np.zeros_like(point)
        if rank == 0:
            if not search.converged:
                at = point.astype(np.float64)
                value = total / rows_of_all + float(penalty @ (at * at)) / 2
                slope = None if mean is None else coordinates.gradient(mean + penalty * at)
                accepted = search.tell(value, slope)
                if accepted and not search.extending:  # its length is right
                    idle = idle + 1 if value > best - how.least else 0
                    best = min(best, value)
            coordinates.params(search.point, out=ahead)
            enough = search.converged or idle >= how.patience
        accepted, enough = map(bool, channel.reduce([accepted, enough]))
        if accepted:
            keep[0], kept_loss = point, loss
        # Rank 0 has all of it; the sum with nothing is exact.
        point = np.array(channel.mean(ahead, int(rank == 0)))
        if epoch < 0:
            continue
        report = EpochReport(
            kept_loss, rows.count, 0.0, 0.0, time.monotonic() - began, 0.0, 0.0, 1,
            full_batch=1, converged=int(enough),
        )  # fmt: skip
        record = channel.end_epoch(epoch, report.row(), decide(epoch), keep)
        if record is not None and EpochRecord.from_row(record).last:
            return


class _Pieces:
    """A rank's training rows, in pieces that fit in a core's cache.

    `beat` is called now and then while a pass is under way: it may take longer than the
    others wait for somebody who gives no sign.
    """

    def __init__(
        self,
        model: Model,
        blocks: Sequence[Block],
        row_elements: float,
        beat: Callable[[], None],
    ) -> None:
        self._model = model
        self._beat = beat
        self._blocks = [(block, block.training_rows()) for block in blocks]
        self.row_elements = max(1.0, row_elements)
        cached = _CACHED / (self.row_elements * model.dtype.itemsize)
        self._at_once = int(min(_MOST, max(_FEWEST, cached)))
        self._sum = np.zeros(model.layout.size, model.dtype)
        self.count = sum(block.rows for block in blocks)

    def evaluate(self, params: NDArray[np.floating]) -> tuple[float, NDArray[np.floating]]:
        """Sums of losses and of gradients, the latter in double while they grow."""
        loss, summed = 0.0, 0
        total = np.zeros(len(params))
        beaten = time.monotonic()
        for block, order, start, stop in self._pieces():
            if summed >= _SUMMED:
                total += self._sum
                summed = 0
            if not summed:
                self._sum.fill(0)
            loss += self._add(params, block, order, start, stop)
            summed += stop - start
            if time.monotonic() - beaten > _BEAT_EVERY:
                self._beat()
                beaten = time.monotonic()
        if summed:
            total += self._sum
        return loss, total.astype(self._sum.dtype)

    def _pieces(self) -> Iterator[tuple[Block, NDArray[np.int64] | None, int, int]]:
        # A kernel keeps rows in cache by itself.
        most = self._at_once if self._model.kernel is None else _SUMMED
        for block, order in self._blocks:
            first, last = (block.start, block.stop) if order is None else (0, len(order))
            for start in range(first, last, most):
                yield block, order, start, min(start + most, last)

    def _add(
        self,
        params: NDArray[np.floating],
        block: Block,
        order: NDArray[np.int64] | None,
        start: int,
        stop: int,
    ) -> float:
        kernel = self._model.kernel
        if kernel is not None:
            return kernel.add_batch(block.for_kernels, order, start, stop, params, self._sum)
        rows = block.segment(start, stop, order)
        return self._model.loss_gradient(params, rows.X, rows.y, rows.weight, out=self._sum)

    def sample(self, stride: int) -> list[tuple[BlockRows, NDArray[np.int64]]]:
        """One row of each `stride`, by their numbers."""
        return [
            (
                block.for_kernels,
                np.arange(block.start, block.stop, stride)
                if order is None
                else np.ascontiguousarray(order[::stride]),
            )
            for block, order in self._blocks
        ]


class _Coordinates(Protocol):
    """Where the search takes its steps."""

    def params(self, point: NDArray[np.float64], out: NDArray[np.floating]) -> Any:
        """Write the parameters at a point."""

    def point(self, params: NDArray[np.floating]) -> NDArray[np.float64]:
        """The point of parameters."""

    def gradient(self, gradient: NDArray[np.float64]) -> NDArray[np.float64]:
        """The gradient with respect to the point."""


class _Parameters:
    """The parameters themselves as coordinates."""

    def params(self, point: NDArray[np.float64], out: NDArray[np.floating]) -> None:
        out[:] = point

    def point(self, params: NDArray[np.floating]) -> NDArray[np.float64]:
        return params.astype(np.float64)

    def gradient(self, gradient: NDArray[np.float64]) -> NDArray[np.float64]:
        return gradient


def _coordinates(
    model: Model, channel: Channel, rows: _Pieces, rows_of_all: float, l2: float
) -> _Coordinates:
    """Coordinates in which the objective curves alike, where the model has features."""
    if not isinstance(model, WithFeatures):
        return _Parameters()
    sample = rows.sample(max(1, round(rows_of_all * rows.row_elements / _SAMPLED)))

    def moments(centre: NDArray[np.float64] | None) -> list[NDArray[np.float64]]:
        sums, count = np.zeros((2, model.n_features)), 0
        for block, numbers in sample:
            column_moments(block, numbers, centre, *sums)
            count += len(numbers)
        return [_over_ranks(values, count, model, channel) for values in sums]

    mean, square = moments(None)
    variance = square - mean**2
    # Where little is left of the difference, much of that is rounding.
    if (variance < 100 * np.finfo(model.dtype).eps * square).any():
        variance = moments(mean)[1]
    coordinates: _Coordinates = model.standardised(mean, variance, l2)
    return coordinates


def _over_ranks(
    values: NDArray[np.float64], count: int, model: Model, channel: Channel
) -> NDArray[np.float64]:
    """The mean of fewer values than there are parameters."""
    padded = np.zeros(model.layout.size, model.dtype)
    padded[: len(values)] = values
    return channel.mean(padded, count)[: len(values)].astype(np.float64)
