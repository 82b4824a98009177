"""The range of the flat parameter vector on each shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Placement:
    """The range of the flat vector on each shard.

    Examples
    --------
    >>> place = Placement.of(10, 2)
    >>> place.range(0), place.range(1)
    ((0, 5), (5, 10))
    """

    cuts: tuple[int, ...]  # the first element of each shard, and the end of the last one
    unit: int = 1  # elements that stay together, such as those of a key

    @classmethod
    def of(cls, size: int, n_shards: int, unit: int = 1) -> Self:
        """Cut a vector into equal ranges, fewer than `n_shards` if there are few keys."""
        keys = size // unit
        n = max(1, min(n_shards, keys))
        return cls(tuple(keys * shard // n * unit for shard in range(n + 1)), unit)

    def __len__(self) -> int:
        return len(self.cuts) - 1

    def range(self, shard: int) -> tuple[int, int]:
        """Return a shard's first element and its end."""
        return self.cuts[shard], self.cuts[shard + 1]

    def size(self, shard: int) -> int:
        """Number of elements on a shard."""
        return self.cuts[shard + 1] - self.cuts[shard]

    def below(self, shard: int, stop: int) -> int:
        """Number of a shard's elements among the first `stop`."""
        start, end = self.range(shard)
        return max(0, min(end, stop) - start)

    def behind(self, start: int) -> Placement:
        """Return the placement without the first `start` elements; shards may become empty."""
        return Placement(tuple(max(cut - start, 0) for cut in self.cuts), self.unit)

    def take(self, shard: int, flat: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return a view of a shard's elements in the last axis of `flat`."""
        start, stop = self.range(shard)
        return flat[..., start:stop]

    def put(self, shard: int, values: NDArray[Any], flat: NDArray[Any], first: int = 0) -> None:
        """Write a shard's elements, from some offset on, into the last axis of `flat`."""
        self.take(shard, flat)[..., first : first + values.shape[-1]] = values

    def segments(
        self, shard: int, segments: Callable[[int, int], Sequence[tuple[int, int, int]]]
    ) -> tuple[tuple[int, int, int], ...]:
        """Return runs of elements of one kind, in the shard's own coordinates."""
        start, stop = self.range(shard)
        return tuple((a - start, b - start, kind) for a, b, kind in segments(start, stop))
