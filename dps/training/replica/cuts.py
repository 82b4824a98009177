"""A rank's pieces as the cuts that it reads, of partitions in memory or of streams.

If all rows of a rank are in memory, its pieces are its cuts: large cuts mix best and are read
fastest. If some rows are streamed, all pieces are cut into the sizes that streams need.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dps.data.collections.partitions import Partition, Piece
from dps.data.feed.blocks import Block, features_of
from dps.data.feed.cuts import TOGETHER, Cut, LoadedCut, StreamedCut, cut_at
from dps.data.keep.streams import Stream, Values, open_partition

if TYPE_CHECKING:
    from dps.training.replica.spec import ReplicaSpec


def cuts_of(spec: ReplicaSpec, partitions: Sequence[Partition]) -> Iterator[Cut]:
    """Return the cuts of a rank.

    partitions: one per piece, or what replaces a streamed one.
    """
    whole: dict[int, Block] = {}  # blocks of whole partitions in memory
    most = spec.cut_rows if streamed(partitions) else None
    for piece, partition in zip(spec.pieces, partitions, strict=True):
        if isinstance(partition.X, Stream):
            yield from _cuts_of_stream(spec, piece, partition.X)
            continue
        known = whole.get(piece.partition)
        if piece.moved or known is None:
            values = open_partition(partition.X, partition.y, partition.weight)
            first = piece.start if piece.moved else 0
            held = spec.held_out.rows(piece.partition, first + values[0].shape[0])
            known = _block(spec, piece, values, first, None if held is None else held[first:])
            if not piece.moved:
                whole[piece.partition] = known
        start, stop = piece.start - known.first, piece.stop - known.first
        for at in cut_at(start, stop, most or max(1, piece.rows)):
            # The features share their first user's memory, except for scratch memory.
            features = copy.copy(known.features)
            yield LoadedCut(replace(known, features=features, start=at[0], stop=at[1]))


def streamed(partitions: Sequence[Partition]) -> bool:
    """True if rows of some partitions are read during training."""
    return any(isinstance(partition.X, Stream) for partition in partitions)


def _cuts_of_stream(spec: ReplicaSpec, piece: Piece, stream: Stream) -> Iterator[StreamedCut]:
    whole, held = stream.origin.whole, spec.held_out.rows(piece.partition, stream.n_rows)
    size = 1 if spec.full_batch is None else TOGETHER
    if whole:
        size = max(1, size * stream.n_rows // spec.cut_rows)
    for start, stop in cut_at(piece.start, piece.stop, piece.rows if whole else spec.cut_rows):
        cut, rows, bits = replace(piece, start=start, stop=stop), stop - start, None
        if held is not None:
            rows -= int(np.count_nonzero(held[start:stop]))
            bits = np.packbits(held if whole else held[start:stop])
        make = partial(_made, spec, cut, stream, bits)
        yield StreamedCut(piece.partition, start, rows, stop - start - rows, size, make)


def _made(spec: ReplicaSpec, cut: Piece, stream: Stream, bits: NDArray[np.uint8] | None) -> Block:
    """Return a cut of a stream as a block, of its own rows only if the stream can give them."""
    first, stop = (0, stream.n_rows) if stream.origin.whole else (cut.start, cut.stop)
    held = None if bits is None else np.unpackbits(bits, count=stop - first).view(np.bool_)
    return _block(spec, cut, stream.read(first, stop), first, held)


def _block(
    spec: ReplicaSpec, piece: Piece, values: Values, first: int, held: NDArray[np.bool_] | None
) -> Block:
    """Return the rows of a partition from `first` on as a block."""
    X, y, weight = values
    targets, weight = spec.targets.encode(y, weight, spec.channel.dtype)
    features = features_of(X, spec.channel.dtype)
    start, stop = piece.start - first, piece.stop - first
    return Block(piece.partition, features, targets, weight, start, stop, held, first)
