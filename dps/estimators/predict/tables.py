"""Predictions of a model whose table is too large for every worker.

Pieces of the table are on the cluster's workers, where Dask places them. For each partition a task
finds the rows that it needs, a task per piece selects them on the piece's worker, and a task
predicts with them: only the needed rows travel. A partition's model is the trained one with fewer
rows, so its predictions have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dps.data.collections.sealed import identity, sealed

#: Bytes of a table that goes to every worker, and of a piece of a larger one.
_WHOLE, _PIECE = 64 << 20, 16 << 20

#: Ids of rows, ascending, and the rows.
TableRows = tuple[NDArray[np.int64], NDArray[np.floating]]


class TableRaw(Protocol):
    """A trained model, see `Raw`, with a table; a block of rows needs few of its rows."""

    @property
    def table(self) -> TableRows:
        """All rows of the table."""

    def with_rows(self, parts: Sequence[TableRows]) -> TableRaw:
        """Return the model with these rows only, ascending over the parts."""

    def needed(self, X: Any) -> NDArray[np.int64]:
        """Return ids, ascending, that include all ids of a block."""


class _Predictor(Protocol):
    """A predictor of blocks of rows, see ``predict.py``."""

    @property
    def model(self) -> Any: ...

    def with_model(self, raw: Any) -> Any: ...

    def rows(self, X: Any, place: str) -> Any: ...


@dataclass(frozen=True, eq=False)
class TablePredictor:
    """A predictor whose table is on workers."""

    base: Any  # the predictor without rows
    pieces: list[Any]

    @classmethod
    def of(cls, predict: Any, client: Any) -> TablePredictor | None:
        """Put a table on a client's workers; None if it is small or absent."""
        raw = predict.model
        table: TableRows | None = getattr(raw, "table", None)
        if table is None or table[1].nbytes <= _WHOLE or client is None or client.asynchronous:
            return None
        ids, rows = table
        each = max(1, _PIECE // rows[:1].nbytes)
        pieces = [(ids[at : at + each], rows[at : at + each]) for at in range(0, len(ids), each)]
        base = predict.with_model(raw.with_rows([(ids[:0], rows[:0])]))
        # One after another, so that one piece at a time is sent.
        return cls(base, [client.scatter([piece], hash=False)[0] for piece in pieces])

    def parts(self, X: Sequence[Any], apply: Callable[..., Any]) -> list[Any]:
        """Apply ``apply(part, predictor, number)`` to each part, as Delayed objects."""
        import dask

        base = dask.delayed(sealed(identity, self.base), pure=True)()
        find, pick = dask.delayed(sealed(_needed)), dask.delayed(sealed(_pick))
        use = dask.delayed(sealed(_use, apply))
        made = []
        for number, part in enumerate(X):
            ids = find(part, base, number)
            made.append(use(part, base, [pick(piece, ids) for piece in self.pieces], number))
        return made


def _needed(part: Any, predict: _Predictor, number: int) -> NDArray[np.int64]:
    raw: Any = predict.model
    return raw.needed(predict.rows(part, f" in partition {number}"))


def _pick(piece: TableRows, ids: NDArray[np.int64]) -> TableRows:
    held, rows = piece
    at = np.flatnonzero(np.isin(held, ids, assume_unique=True))
    return held[at], rows[at]


def _use(
    apply: Callable[..., Any], part: Any, predict: _Predictor, found: list[TableRows], number: int
) -> Any:
    raw: Any = predict.model
    return apply(part, predict.with_model(raw.with_rows(found)), number)
