"""Which elements of the flat parameter vector lie on which shard.

Pure arithmetic on sizes: it knows nothing of windows, workers or models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# A round-robin piece is a page of float64, so that a shard's pieces stay vectorisable.
_BLOCK = 512

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Placement:
    """The ranges of the flat vector that each shard holds, in ascending order.

    Examples
    --------
    >>> place("contiguous", [10], 2).ranges
    (((0, 5),), ((5, 10),))
    """

    # One tuple of half-open ranges a shard. Together they cover the vector once.
    ranges: tuple[Ranges, ...]
    unit: int = 1  # elements that stay together, as those of a key do

    def __len__(self) -> int:
        return len(self.ranges)

    def size(self, shard: int) -> int:
        """Elements held by a shard."""
        return sum(stop - start for start, stop in self.ranges[shard])

    def by_key(self) -> Placement:
        """The same of keys."""
        unit = self.unit
        return Placement(tuple(tuple((a // unit, b // unit) for a, b in r) for r in self.ranges))

    def below(self, shard: int, stop: int) -> int:
        """How many of a shard's elements are among the first `stop`."""
        return sum(max(0, min(b, stop) - a) for a, b in self.ranges[shard])

    def behind(self, start: int) -> Placement:
        """The same of what is behind the first `start` elements; some shards may have none."""
        return Placement(
            tuple(
                tuple((max(a - start, 0), b - start) for a, b in ranges if b > start)
                for ranges in self.ranges
            ),
            self.unit,
        )

    def take(self, shard: int, flat: NDArray[np.floating]) -> NDArray[np.floating]:
        """A shard's elements of the last axis of `flat`: a view if they are one range."""
        ranges = self.ranges[shard]
        if len(ranges) == 1:
            return flat[..., ranges[0][0] : ranges[0][1]]
        return np.concatenate([flat[..., :0], *(flat[..., a:b] for a, b in ranges)], axis=-1)

    def put(self, shard: int, values: NDArray[Any], flat: NDArray[Any], first: int = 0) -> None:
        """Write a shard's elements, from one of them on, into the last axis of `flat`."""
        offset = 0
        for start, stop in self.ranges[shard]:
            a = max(first, offset)
            b = min(first + values.shape[-1], offset + stop - start)
            if a < b:
                at = slice(start + a - offset, start + b - offset)
                flat[..., at] = values[..., a - first : b - first]
            offset += stop - start

    def segments(
        self, shard: int, segments: Callable[[int, int], Sequence[tuple[int, int, int]]]
    ) -> tuple[tuple[int, int, int], ...]:
        """Runs of elements of one kind, in the shard's own coordinates."""
        local: list[tuple[int, int, int]] = []
        offset = 0
        for start, stop in self.ranges[shard]:
            local += [
                (a - start + offset, b - start + offset, p) for a, b, p in segments(start, stop)
            ]
            offset += stop - start
        return tuple(local)


def _contiguous(sizes: Sequence[int], n_shards: int) -> list[list[tuple[int, int]]]:
    total = sum(sizes)
    cuts = [total * shard // n_shards for shard in range(n_shards + 1)]
    return [[(cuts[k], cuts[k + 1])] for k in range(n_shards)]


def _pieces(sizes: Sequence[int], largest: int) -> list[tuple[int, int]]:
    pieces = []
    start = 0
    for size in sizes:
        pieces += [(start + at, start + min(at + largest, size)) for at in range(0, size, largest)]
        start += size
    return pieces


def _balanced(sizes: Sequence[int], n_shards: int) -> list[list[tuple[int, int]]]:
    # Longest processing time first; no tensor piece is larger than a fair share.
    fair = max(1, -(-sum(sizes) // n_shards))
    shards: list[list[tuple[int, int]]] = [[] for _ in range(n_shards)]
    loads = [0] * n_shards
    for start, stop in sorted(_pieces(sizes, fair), key=lambda p: (p[0] - p[1], p[0])):
        lightest = min(range(n_shards), key=lambda k: (loads[k], k))
        shards[lightest].append((start, stop))
        loads[lightest] += stop - start
    return shards


def _round_robin(sizes: Sequence[int], n_shards: int) -> list[list[tuple[int, int]]]:
    shards: list[list[tuple[int, int]]] = [[] for _ in range(n_shards)]
    block = min(_BLOCK, max(1, -(-sum(sizes) // n_shards)))
    for number, piece in enumerate(_pieces(sizes, block)):
        shards[number % n_shards].append(piece)
    return shards


PLACEMENTS: dict[str, Callable[[Sequence[int], int], list[list[tuple[int, int]]]]] = {
    "balanced": _balanced,
    "contiguous": _contiguous,
    "round_robin": _round_robin,
}


def _merge(pieces: list[tuple[int, int]]) -> Ranges:
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(pieces):
        if start == stop:
            continue
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return tuple(merged)


def place(name: str, sizes: Sequence[int], n_shards: int, unit: int = 1) -> Placement:
    """Place tensors of the given sizes, laid end to end, on shards.

    name: {"contiguous", "balanced", "round_robin"}, equal consecutive pieces of the whole vector;
        whole tensors where that is fair, the largest first onto the lightest shard; or blocks of
        the tensors dealt out in turn. Every rule may cut a tensor.
    sizes: elements of each tensor.
    n_shards: shards wanted. Fewer are made where there are too few pieces to go round.
    unit: elements that stay together, as those of a key do; all tensors are placed as one then.

    Examples
    --------
    >>> place("balanced", [6, 3, 3], 2).ranges
    (((0, 6),), ((6, 12),))
    """
    if unit > 1:
        rows = place(name, [sum(sizes) // unit], n_shards).ranges
        scaled = tuple(tuple((a * unit, b * unit) for a, b in shard) for shard in rows)
        return Placement(scaled, unit)
    n_shards = max(1, min(n_shards, sum(sizes)))
    ranges = tuple(_merge(pieces) for pieces in PLACEMENTS[name](sizes, n_shards))
    return Placement(tuple(r for r in ranges if r) or (((0, sum(sizes)),),))
