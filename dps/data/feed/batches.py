"""Batches: the rows of a step, as parts of blocks."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dps._kernels.order import shuffle
from dps.data.feed.blocks import Block
from dps.data.feed.targets import as_targets


class BlockSource(Protocol):
    """Provides a rank's blocks, epoch by epoch."""

    @property
    def rows(self) -> int:
        """The rank's training rows per epoch."""

    def groups(self, epoch: int) -> Generator[Group]:
        """Yield groups of blocks whose rows are mixed."""


class BatchPart:
    """The rows of a batch in one block.

    order: (n,) int64 array or None, the block's training rows in the order of use; None takes all
        in order.
    """

    def __init__(self, block: Block, order: NDArray[np.int64] | None) -> None:
        self._block = block
        self._order = order
        self._at = block.start if order is None else 0
        self.left = block.stop - block.start if order is None else len(order)

    def rest(self) -> tuple[Block, NDArray[np.int64] | None, int, int]:
        """The block, the order, and the first and last place of its rows in the order or block."""
        return self._block, self._order, self._at, self._at + self.left


Group = list[BatchPart]


@dataclass(frozen=True)
class Batches:
    """Cuts an epoch into steps.

    Step t of T takes rows ``n t // T`` to ``n (t + 1) // T`` of the rank's n rows, possibly none,
    so that replicas with unequal rows finish together. It takes from the blocks of a group in
    proportion to the rows that are left in each.
    """

    source: BlockSource
    steps: int  # steps per epoch, T


def spread(count: int, n_groups: int, key: int) -> list[list[int]]:
    """Distribute numbers below `count` over groups of about equal size, each from the whole range.

    Each of `n_groups` neighbours goes to another group, at random. So every group has its share of
    each value that the numbers are sorted by.
    """
    order, turns = np.arange(count), np.arange(n_groups)
    shuffle(order, key)
    shuffle(turns, key + 1)
    groups: list[list[int]] = [[] for _ in turns]
    taken = [0] * count  # numbers of each run of neighbours
    for number in order.tolist():
        run = number // n_groups
        groups[turns[taken[run]]].append(number)
        taken[run] += 1
    return groups


#: Key spaces, which keep random draws for different purposes apart: validation rows, exchanges,
#: folds and splits. Those of epochs are below.
HELD_OUT, EXCHANGED, FOLDS, SPLITS = (space << 32 for space in (1, 2, 3, 4))


def order_of(
    rows: int, seed: int, number: int, space: int, labels: Any = None
) -> NDArray[np.int64]:
    """Return a random order of a partition's rows, grouped by label if labels are given.

    space: one of the key spaces.
    labels: ignored if they have several columns.
    """
    order = np.arange(rows)
    shuffle(order, key_of(seed, 0, number, space))
    if labels is None or (labels := as_targets(labels)).ndim > 1:
        return order
    _, codes = np.unique(labels, return_inverse=True)
    return order[np.argsort(codes[order], kind="stable")]


def key_of(*numbers: int) -> int:
    """Return 64 bits for some numbers; trailing zeros do not matter."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
