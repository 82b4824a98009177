"""The rows that a rank cuts into steps: blocks, and the order of their rows."""

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
    """The source of a rank's blocks, epoch by epoch."""

    @property
    def rows(self) -> int:
        """Training rows of the rank in an epoch."""

    def groups(self, epoch: int) -> Generator[Group]:
        """Blocks whose rows are taken together, one group after the other."""


class BatchPart:
    """The rows of a batch that lie in one block.

    order: (n,) int64 array or None, its training rows in the order they are taken; None takes all
        in order.
    """

    def __init__(self, block: Block, order: NDArray[np.int64] | None) -> None:
        self._block = block
        self._order = order
        self._at = block.start if order is None else 0
        self.left = block.stop - block.start if order is None else len(order)

    def rest(self) -> tuple[Block, NDArray[np.int64] | None, int, int]:
        """The block, the order, and where in that, or in the block, its rows start and stop."""
        return self._block, self._order, self._at, self._at + self.left


Group = list[BatchPart]


@dataclass(frozen=True)
class Batches:
    """Cuts an epoch into steps.

    Step t of T takes rows ``n t // T`` to ``n (t + 1) // T`` of the rank's n rows,
    possibly none, so that replicas with unequal rows finish together. From blocks that
    are mixed it takes in proportion to what is left of each.
    """

    source: BlockSource
    steps: int  # steps of an epoch, T


def spread(count: int, n_groups: int, key: int) -> list[list[int]]:
    """Numbers below `count` in groups of about equal size, each from all over their range.

    Of as many neighbours as there are groups each goes to another one, by chance: whatever
    the numbers are sorted by, every group has its share of it.
    """
    order, turns = np.arange(count), np.arange(n_groups)
    shuffle(order, key)
    shuffle(turns, key + 1)
    groups: list[list[int]] = [[] for _ in turns]
    taken = [0] * count  # of each run of neighbours
    for number in order.tolist():
        run = number // n_groups
        groups[turns[taken[run]]].append(number)
        taken[run] += 1
    return groups


#: Key spaces, which keep what is drawn for one end apart from the others: rows for validation,
#: rows that are exchanged, folds, splits. Those of epochs are below.
HELD_OUT, EXCHANGED, FOLDS, SPLITS = (space << 32 for space in (1, 2, 3, 4))


def order_of(
    rows: int, seed: int, number: int, space: int, labels: Any = None
) -> NDArray[np.int64]:
    """A random order of a partition's rows; one label after the other if labels are given.

    space: one of the key spaces.
    labels: several columns are not looked at.
    """
    order = np.arange(rows)
    shuffle(order, key_of(seed, 0, number, space))
    if labels is None or (labels := as_targets(labels)).ndim > 1:
        return order
    _, codes = np.unique(labels, return_inverse=True)
    return order[np.argsort(codes[order], kind="stable")]


def key_of(*numbers: int) -> int:
    """64 bits of some numbers, which zeros behind them do not change."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
