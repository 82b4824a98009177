"""Loss and score of a rank's held-out rows, at given parameters or by keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dps.data.feed.blocks import Block, Segment
from dps.data.feed.cuts import Source
from dps.data.feed.targets import TargetEncoding
from dps.models import Model
from dps.scores.validation import Score
from dps.training.replica.channel import Channel, raise_unless_ran

#: Sums over a rank's validation rows: losses, weights, and the report of a score.
Validation = tuple[float, float, Sequence[float] | NDArray[np.float64]]

#: Rows that are evaluated together.
_ROWS = 4096


class _Part(NamedTuple):
    block: Block
    rows: NDArray[np.int64]
    start: int
    stop: int
    segment: Segment


class HeldOutRows:
    """The held-out rows of a rank.

    score: computed besides the loss.
    beat: called once per block.
    """

    def __init__(
        self,
        source: Source,
        targets: TargetEncoding,
        score: Score | None,
        beat: Callable[[], None],
    ) -> None:
        self._source = source
        self._targets = targets
        self._score = score
        self._beat = beat

    def at(self, model: Model, params: NDArray[np.floating]) -> Validation:
        """Return loss, weight and the report of the score at parameters."""
        evaluate = getattr(model, "evaluate", None)
        if evaluate is None:  # the gradient is computed and ignored
            evaluate = partial(model.loss_gradient, out=np.zeros_like(params))

        def look(part: _Part) -> tuple[float, Any]:
            some = part.segment
            loss = evaluate(params, some.X, some.y, some.weight)
            return loss, None if self._score is None else model.raw(params, some.X)

        return self._sums(look)

    def by_keys(self, model: Any, channel: Channel) -> Validation:
        """Return the same by keys: pull the parameters that sparse rows touch."""
        kernel, step = model.kernel, channel.step

        def look(part: _Part) -> tuple[float, Any]:
            step.keys.begin()
            kernel.touch_batch(part.block.for_kernels, part.rows, part.start, part.stop, step.keys)
            raise_unless_ran(step.pull_touched(), None, channel.steps)
            raw = np.empty((part.stop - part.start, model.n_outputs), model.dtype)
            kernel.raw_touched_batch(step.keys, step.touched, raw)
            some = part.segment
            return model.loss.evaluate(some.y, raw, some.weight, np.empty_like(raw)), raw

        return self._sums(look)

    def _sums(self, look: Callable[[_Part], tuple[float, Any]]) -> Validation:
        loss, weight, reports = 0.0, 0.0, []
        for part in self._parts():
            added, raw = look(part)
            some = part.segment
            loss += added
            weights = np.ones(len(some.y)) if some.weight is None else some.weight
            weights = np.asarray(weights, np.float64)
            weight += float(weights.sum())
            if self._score is not None:
                reports.append(self._score._sums(self._targets, some.y, raw, weights))
        return loss, weight, () if self._score is None else self._score._joined(reports)

    def _parts(self) -> Iterator[_Part]:
        with closing(self._source.blocks(held_out=True)) as blocks:
            for block in blocks:
                self._beat()
                rows = block.validation_rows()
                for start in range(0, len(rows), _ROWS):
                    stop = min(start + _ROWS, len(rows))
                    yield _Part(block, rows, start, stop, block.segment(start, stop, rows))
