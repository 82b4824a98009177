"""The assignment of replicas and rows to workers, from where the rows lie.

Rows are copied to another worker where that makes replicas finish together, and as few of
them as possible. It knows numbers of rows and names of workers, and nothing of either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from dps.data.collections.partitions import Piece

#: The rows of each worker, in order.
Held = Mapping[str, Sequence[Piece]]

#: A replica may have so much more than the mean of all; the others wait for it as long.
_SLACK = Fraction(1, 20)
#: Moving costs the time of some passes over the rows that move, and a fit takes ten or more:
#: it pays where the slowest replica has so much more than it needs to have,
_MIN_EXCESS_SHARE = Fraction(1, 5)
#: and where what it has too much takes a millisecond a pass: so many stored values of X.
_ELEMENTS_WORTH = 1 << 21


def held_rows(held: Held) -> dict[str, int]:
    """Rows of each worker."""
    return {worker: sum(piece.rows for piece in pieces) for worker, pieces in held.items()}


def replica_counts(n_replicas: int, held: Held, threads: Mapping[str, int]) -> dict[str, int]:
    """Replicas of each worker, where rows may move: first a thread each, nearest to the rows.

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
    """True if `n_replicas` equal shares end a fit sooner than the shares that lie there.

    counts: replicas of each worker, if nothing moves.
    n_replicas: replicas of all, if rows move.
    threads: threads of each worker; replicas beyond them take turns.
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
    """Share rows out by the numbers of replicas, moving as few as possible.

    Who has more than its part, and a twentieth, gives its last rows; who has less takes
    them in turn.

    counts: replicas of each worker; one that is not there gives all it has.
    Returns workers with rows, those that had some before first.

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
    """Cut rows into `n` shares that differ by a row at most.

    stripes: runs of rows that each share is made of, from all over the pieces: the shares take
        turns.

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
    """The first rows, and the others."""
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
