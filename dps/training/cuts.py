"""A rank's pieces as the cuts that it reads: of partitions in memory, or of streams.

The same cuts for both where their order matters, so that rows which are streamed are trained on
as if they lay in memory: a batch is a sum over its parts of cuts. L-BFGS reads what lies in memory
in one piece.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dps.data.batches import held_out_rows
from dps.data.blocks import Block, features_of
from dps.data.partitions import Partition, Piece
from dps.data.sources import Coming, Cut, Lying, cut_at
from dps.data.streams import Stream, Values, open_partition

if TYPE_CHECKING:
    from dps.training.replica import ReplicaSpec

__all__ = ["cuts_of"]


def cuts_of(spec: ReplicaSpec, partitions: Sequence[Partition]) -> Iterator[Cut]:
    """The cuts of a rank.

    Parameters
    ----------
    spec : ReplicaSpec
    partitions : sequence of Partition
        One for each of its pieces, or what stands for them.
    """
    whole: dict[int, Block] = {}  # of partitions that lie here
    for piece, partition in zip(spec.pieces, partitions, strict=True):
        if isinstance(partition.X, Stream):
            yield from _coming(spec, piece, partition.X)
            continue
        known = whole.get(piece.partition)
        if piece.moved or known is None:
            values = open_partition(partition.X, partition.y, partition.weight)
            known = _block(spec, piece, values, piece.start if piece.moved else 0)
            if not piece.moved:
                whole[piece.partition] = known
        yield from _lying(spec, known, piece.start - known.first, piece.stop - known.first)


def _lying(spec: ReplicaSpec, block: Block, start: int, stop: int) -> Iterator[Lying]:
    whole = spec.full_batch is not None  # the order of sums is nothing to it but rounding
    for first, last in [(start, stop)] if whole else cut_at(start, stop, spec.cut_rows):
        # Nothing but scratch memory, which features get with their first use, is its own.
        yield Lying(replace(block, features=copy.copy(block.features), start=first, stop=last))


def _coming(spec: ReplicaSpec, piece: Piece, stream: Stream) -> Iterator[Coming]:
    whole = stream.origin.whole
    most = piece.rows if whole else spec.cut_rows
    for start, stop in cut_at(piece.start, piece.stop, most):
        rows = stop - start
        if spec.validation_fraction:
            held = held_out_rows(spec.seed, piece.partition, stop, spec.validation_fraction)
            rows -= int(np.count_nonzero(held[start:]))
        yield Coming(
            piece.partition,
            start,
            rows,
            partial(_made, spec, replace(piece, start=start, stop=stop), stream),
            max(1, stream.n_rows // spec.cut_rows) if whole else 1,
        )


def _made(spec: ReplicaSpec, piece: Piece, stream: Stream) -> Block:
    if stream.origin.whole:
        return _block(spec, piece, stream.read(), 0)
    return _block(spec, piece, stream.read(piece.start, piece.stop), piece.start)


def _block(spec: ReplicaSpec, piece: Piece, values: Values, first: int) -> Block:
    """Rows of a partition from `first` on as a block."""
    X, y, weight = values
    targets, weight = spec.targets.encode(y, weight, spec.channel.dtype)
    held_out = None
    if spec.validation_fraction:
        stop = first + len(targets)
        held_out = held_out_rows(spec.seed, piece.partition, stop, spec.validation_fraction)[first:]
    return Block(
        piece.partition,
        features_of(X, spec.channel.dtype),
        targets,
        weight,
        piece.start - first,
        piece.stop - first,
        held_out,
        first,
    )
