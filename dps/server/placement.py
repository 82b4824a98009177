"""The range of the flat parameter vector on each shard.

Pure arithmetic on sizes: it knows nothing of windows, workers or models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Placement:
    """The range of the flat vector that each shard holds.

    Examples
    --------
    >>> place = Placement.of(10, 2)
    >>> place.range(0), place.range(1)
    ((0, 5), (5, 10))
    """

    cuts: tuple[int, ...]  # where each shard's range begins, and the end of the last one
    unit: int = 1  # elements that stay together, as those of a key do

    @classmethod
    def of(cls, size: int, n_shards: int, unit: int = 1) -> Self:
        """Cut a vector into equal ranges, fewer than `n_shards` if keys are few."""
        keys = size // unit
        n = max(1, min(n_shards, keys))
        return cls(tuple(keys * shard // n * unit for shard in range(n + 1)), unit)

    def __len__(self) -> int:
        return len(self.cuts) - 1

    def range(self, shard: int) -> tuple[int, int]:
        """A shard's first element, and the one behind its last."""
        return self.cuts[shard], self.cuts[shard + 1]

    def size(self, shard: int) -> int:
        """Elements held by a shard."""
        return self.cuts[shard + 1] - self.cuts[shard]

    def below(self, shard: int, stop: int) -> int:
        """Number of a shard's elements among the first `stop`."""
        start, end = self.range(shard)
        return max(0, min(end, stop) - start)

    def behind(self, start: int) -> Placement:
        """The same without the first `start` elements; some shards may have none."""
        return Placement(tuple(max(cut - start, 0) for cut in self.cuts), self.unit)

    def take(self, shard: int, flat: NDArray[np.floating]) -> NDArray[np.floating]:
        """A view of a shard's elements of the last axis of `flat`."""
        start, stop = self.range(shard)
        return flat[..., start:stop]

    def put(self, shard: int, values: NDArray[Any], flat: NDArray[Any], first: int = 0) -> None:
        """Write a shard's elements, from one of them on, into the last axis of `flat`."""
        self.take(shard, flat)[..., first : first + values.shape[-1]] = values

    def segments(
        self, shard: int, segments: Callable[[int, int], Sequence[tuple[int, int, int]]]
    ) -> tuple[tuple[int, int, int], ...]:
        """Runs of elements of one kind, in the shard's own coordinates."""
        start, stop = self.range(shard)
        return tuple((a - start, b - start, kind) for a, b, kind in segments(start, stop))
