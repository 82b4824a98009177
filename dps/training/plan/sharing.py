"""The assignment of replicas and rows to workers that hold rows.

Rows are copied to another worker if replicas then finish at the same time, and as few rows as
possible. This module sees only numbers of rows and names of workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from dps.data.collections.partitions import Piece

#: The rows of each worker, in order.
Held = Mapping[str, Sequence[Piece]]

#: A replica may have this much more than the mean; the others wait for it that long.
_SLACK = Fraction(1, 20)
#: Moving rows takes as long as some passes over them, and a fit makes ten or more. So it pays if
#: the slowest replica has this share more than necessary,
_MIN_EXCESS_SHARE = Fraction(1, 5)
#: and if the excess takes a millisecond per pass: these stored values of X.
_ELEMENTS_WORTH = 1 << 21


def held_rows(held: Held) -> dict[str, int]:
    """Return the rows of each worker."""
    return {worker: sum(piece.rows for piece in pieces) for worker, pieces in held.items()}


def replica_counts(n_replicas: int, held: Held, threads: Mapping[str, int]) -> dict[str, int]:
    """Return the replicas of each worker if rows may move: one per thread, nearest to rows first.

    Examples
    --------
    >>> replica_counts(3, {"a": [Piece(0, 0, 90)]}, {"a": 2, "b": 2})
    {'a': 2, 'b': 1}
    """
    rows = held_rows(held)
    others = sorted(set(threads) - set(held), key=lambda worker: (-threads[worker], worker))
    counts = dict.fromkeys([*held, *others], 0)
    for _ in range(n_replicas):
        chosen = max(
            counts,
            key=lambda worker: (
                counts[worker] < threads.get(worker, 1),
                rows.get(worker, 0) / (counts[worker] + 1),
                -counts[worker],
            ),
        )
        counts[chosen] += 1
    return {worker: count for worker, count in counts.items() if count}


def worth_moving(
    held: Held,
    counts: Mapping[str, int],
    n_replicas: int,
    threads: Mapping[str, int],
    elements: float,
) -> bool:
    """True if `n_replicas` equal shares end a fit sooner than shares without moves.

    counts: replicas of each worker without moves.
    n_replicas: number of replicas if rows move.
    threads: threads of each worker; more replicas take turns.
    elements: stored values of X.
    """
    rows = held_rows(held)
    total = sum(rows.values())
    slowest = max(
        Fraction(rows[worker], min(counts[worker], threads.get(worker, 1))) for worker in held
    )
    fair = Fraction(total, min(n_replicas, sum(threads.values())))
    spared = (slowest - fair) * elements / total
    return slowest > fair * (1 + _MIN_EXCESS_SHARE) and spared >= _ELEMENTS_WORTH


def level(held: Held, counts: Mapping[str, int]) -> dict[str, list[Piece]]:
    """Distribute rows by the numbers of replicas, moving as few as possible.

    A worker with a twentieth more than its part gives its last rows; workers with less take them in
    turn.

    counts: replicas of each worker; a worker that is missing gives all its rows.
    Returns the rows of each worker that has any; workers that had rows before come first.

    Examples
    --------
    >>> shares = level({"a": [Piece(0, 0, 90)], "b": [Piece(1, 0, 10)]}, {"a": 1, "b": 1})
    >>> shares["a"], shares["b"] == [Piece(0, 53, 90), Piece(1, 0, 10)]
    ([Piece(partition=0, start=0, stop=53, moved=False)], True)
    """
    total, replicas = sum(held_rows(held).values()), sum(counts.values())
    fair = Fraction(total, replicas)
    kept: dict[str, list[Piece]] = {}
    moving: list[Piece] = []
    for worker, pieces in held.items():
        most = -int(-fair * (1 + _SLACK) * counts.get(worker, 0) // 1)
        kept[worker], given = _split(pieces, most)
        moving += given
    for worker, count in counts.items():
        mine = kept.setdefault(worker, [])
        room = -int(-fair * count // 1) - sum(piece.rows for piece in mine)
        taken, moving = _split(moving, max(0, room))
        mine += taken
    return {
        worker: sorted(pieces, key=lambda piece: (piece.partition, piece.start))
        for worker, pieces in kept.items()
        if pieces
    }


def cut(pieces: Sequence[Piece], n: int, stripes: int = 1) -> list[list[Piece]]:
    """Cut rows into `n` shares whose sizes differ by one row at most.

    stripes: runs of rows in each share; the shares take turns over the pieces.

    Examples
    --------
    >>> [[(p.start, p.stop) for p in share] for share in cut([Piece(0, 0, 8)], 2, stripes=2)]
    [[(0, 2), (4, 6)], [(2, 4), (6, 8)]]
    """
    total = sum(piece.rows for piece in pieces)
    sizes = [total * (share + 1) // n - total * share // n for share in range(n)]
    shares: list[list[Piece]] = [[] for _ in range(n)]
    rest = list(pieces)
    for stripe in range(stripes):
        for share, size in zip(shares, sizes, strict=True):
            rows = size * (stripe + 1) // stripes - size * stripe // stripes
            taken, rest = _split(rest, rows)
            share += taken
    return shares


def _split(pieces: Sequence[Piece], rows: int) -> tuple[list[Piece], list[Piece]]:
    """Return the first rows and the rest."""
    first: list[Piece] = []
    for at, piece in enumerate(pieces):
        if piece.rows > rows:
            middle = piece.start + rows
            if rows:
                first.append(Piece(piece.partition, piece.start, middle))
            return first, [Piece(piece.partition, middle, piece.stop), *pieces[at + 1 :]]
        first.append(piece)
        rows -= piece.rows
    return first, []
