"""A rank's rows as passes read them: all of them, or a part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dps._kernels.moments import column_moments, column_products
from dps._runtime.shared.activity import COMPUTE, LOAD
from dps.data.feed.blocks import Block
from dps.data.feed.cuts import Source
from dps.models import Model
from dps.training.lbfgs.passes import GradientSum, Pass, StreamedPass
from dps.training.replica.channel import Channel
from dps.training.replica.steps import gradient_of

_RUN = 16  # consecutive rows that are drawn together
#: Largest part of a stream that is kept in memory, in bytes of X.
_KEPT = 1 << 25
#: Rows after which a sum in the model's dtype is added to the sum in double.
_SUMMED = 1 << 16
#: Bytes of X that stay in a core's cache between the forward and the backward product.
_CACHED = 1 << 20
_FEWEST, _MOST = 256, 8192  # rows of a piece
_BEAT_EVERY = 0.2  # seconds

Rows = tuple[Block, NDArray[np.int64] | None]


class Pieces:
    """A rank's training rows block by block: all of them, or evenly drawn runs."""

    @classmethod
    def of(cls, model: Model, source: Source, row_elements: float, channel: Channel) -> Pieces:
        """All training rows of a source."""
        if source.streamed:
            passes = partial(_all, source)
            return cls(model, passes, source.rows, row_elements, channel, streamed=True)
        return cls._of_blocks(model, list(_all(source)), row_elements, channel)

    @classmethod
    def _of_blocks(
        cls, model: Model, rows: list[Rows], row_elements: float, channel: Channel
    ) -> Pieces:
        return cls(model, lambda: iter(rows), sum(map(_count, rows)), row_elements, channel)

    def __init__(
        self,
        model: Model,
        passes: Callable[[], Iterator[Rows]],
        count: int,
        row_elements: float,
        channel: Channel,
        streamed: bool = False,
    ) -> None:
        self._model = model
        self._channel = channel
        self._passes = passes
        self._streamed = streamed
        self.count = count
        self.row_elements = max(1.0, row_elements)
        cached = _CACHED / (self.row_elements * model.dtype.itemsize)
        gradient = gradient_of(model, int(min(_MOST, max(_FEWEST, cached))))
        # It sends heartbeats, since a pass may take longer than others wait for a silent rank.
        self._sum = GradientSum(gradient, _SUMMED, channel.beat, _BEAT_EVERY)

    def can_be_thinned(self, share: int) -> bool:
        """True if one row in `share` fits in memory, for rows that are streamed."""
        stored = self.count / share * self.row_elements
        return not self._streamed or stored * (self._model.dtype.itemsize + 4) <= _KEPT

    def thinned(self, share: int) -> Pieces:
        """Draw one row in `share` in short runs, which memory reads faster.

        Rows of a stream are copied.
        """
        some: list[Rows] = []
        for block, order in self._blocks():
            seed = block.partition, block.place
            picks = _runs(_count((block, order)), share, np.random.default_rng(seed))
            picks = picks + block.start if order is None else order[picks]
            some.append((block.copied(picks), None) if self._streamed else (block, picks))
        return Pieces._of_blocks(self._model, some, self.row_elements, self._channel)

    def passes(self) -> Pass:
        """Passes over the rows: sums of losses and gradients, accumulated in double."""
        if self._streamed:
            return StreamedPass(self._sum, lambda: map(_chosen, self._blocks()), self.count)
        return Pass(self._sum, [_chosen(rows) for rows in self._passes()])

    def _blocks(self) -> Iterator[Rows]:
        activity, rows = self._channel.activity, self._passes()
        while True:
            activity.lap(COMPUTE)
            block = next(rows, None)
            activity.lap(LOAD)
            if block is None:
                return
            yield block

    def moments(
        self, n_features: int, centre: NDArray[np.float64] | None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Sums over the rows of the features' deviations from a centre, and of their squares."""
        sums = np.zeros((2, n_features))
        for block, order in self._blocks():
            numbers = np.arange(block.start, block.stop) if order is None else order
            column_moments(block.for_kernels, numbers, centre, *sums)
        return sums[0], sums[1]

    def products(
        self, centre: NDArray[np.float64], scale: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Sums over the rows of products of scaled, centred features: half of the matrix."""
        sums = np.zeros((len(centre), len(centre)))
        for block, order in self._blocks():
            numbers = np.arange(block.start, block.stop) if order is None else order
            column_products(block.for_kernels, numbers, centre, scale, sums)
        return sums


def _all(source: Source) -> Iterator[Rows]:
    return ((block, block.training_rows()) for block in source.blocks())


def _chosen(rows: Rows) -> tuple[Block, NDArray[np.int64] | None, int, int]:
    """Return a block and its selected rows, ``order[first:last]`` or ``first:last``."""
    block, order = rows
    return (
        (block, None, block.start, block.stop) if order is None else (block, order, 0, len(order))
    )


def _count(rows: Rows) -> int:
    _, _, first, last = _chosen(rows)
    return last - first


def _runs(count: int, share: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Draw one in `share` of the numbers below `count`, in runs of equal length."""
    reach = share * _RUN
    whole = count // reach
    first = np.arange(whole) * reach + random.integers(reach - _RUN + 1, size=whole)
    left = count - whole * reach
    last = -(-left // share)
    start = whole * reach + random.integers(left - last + 1)
    return np.concatenate([np.add.outer(first, np.arange(_RUN)).ravel(), start + np.arange(last)])
