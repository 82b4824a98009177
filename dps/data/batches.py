"""Mini-batches of a rank: blocks in, steps of segments out.

A batch may cross blocks without a copy: it is a list of segments. The source of blocks
may be a list in memory or anything else that yields them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dps.data.blocks import Block, Segment

__all__ = ["Batches", "BlockSource", "InMemory", "held_out_rows"]


class BlockSource(Protocol):
    """Where a rank's blocks come from, epoch by epoch."""

    @property
    def rows(self) -> int:
        """Training rows of the rank in an epoch."""
        ...

    def blocks(self, epoch: int) -> Iterator[tuple[Block, NDArray[np.int64] | None]]:
        """The blocks of an epoch, and the order of each one's training rows.

        Without an order they are all rows from the block's start to its stop.
        """
        ...


@dataclass(frozen=True)
class InMemory:
    """Blocks that lie in memory, shuffled afresh in each epoch if wanted.

    Parameters
    ----------
    held : sequence of Block
    seed : int or None
        Key of the order of blocks and of rows within a block; None keeps them as they are.
    rank : int
    """

    held: Sequence[Block]
    seed: int | None
    rank: int

    @property
    def rows(self) -> int:
        """Training rows in an epoch."""
        total = 0
        for block in self.held:
            chosen = block.training_rows()
            total += block.stop - block.start if chosen is None else len(chosen)
        return total

    def blocks(self, epoch: int) -> Iterator[tuple[Block, NDArray[np.int64] | None]]:
        """Yield each block once."""
        if self.seed is None:
            for block in self.held:
                yield block, block.training_rows()
            return
        for at in _generator(self.seed, epoch, self.rank).permutation(len(self.held)):
            block = self.held[at]
            chosen = block.training_rows()
            rng = _generator(self.seed, epoch, self.rank, block.partition)
            if chosen is None:
                chosen = np.arange(block.start, block.stop, dtype=np.int64)
            rng.shuffle(chosen)
            yield block, chosen


@dataclass(frozen=True)
class Batches:
    """Cuts an epoch into steps.

    Step t of T takes rows ``n t // T`` to ``n (t + 1) // T`` of the rank's n rows,
    possibly none, so that replicas with unequal rows finish together.

    Parameters
    ----------
    source : BlockSource
    steps : int
        Steps of an epoch, T.
    """

    source: BlockSource
    steps: int

    def epoch(self, epoch: int) -> Iterator[tuple[int, list[Segment]]]:
        """Yield the rows and the segments of each step."""
        rows, steps = self.source.rows, self.steps
        blocks = self.source.blocks(epoch)
        block: Block | None = None
        order: NDArray[np.int64] | None = None
        at = end = 0
        for step in range(steps):
            wanted = count = rows * (step + 1) // steps - rows * step // steps
            segments = []
            while wanted:
                while block is None or at == end:
                    block, order = next(blocks)
                    at, end = (block.start, block.stop) if order is None else (0, len(order))
                stop = min(end, at + wanted)
                segments.append(block.segment(at, stop, order))
                wanted -= stop - at
                at = stop
            yield count, segments


def held_out_rows(seed: int, partition: int, rows: int, fraction: float) -> NDArray[np.bool_]:
    """Which rows of a partition are kept for validation, the same wherever it is asked."""
    held: NDArray[np.bool_] = _generator(seed, 0, partition, 1 << 32).random(rows) < fraction
    return held


def _generator(*key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))
