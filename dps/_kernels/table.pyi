from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: In `ids`: a row has been there; less its id, one is being made.
LEFT: int
MAKING: int

def homes(ids: NDArray[np.int64], n_rows: int) -> NDArray[np.int64]:
    """Where each id would like to lie among a shard's rows."""

def owners(ids: NDArray[np.int64], n_rows: int) -> NDArray[np.int64]:
    """One of all shards' rows for each id: the shard that has it has the id."""

class TableRows:
    """The rows of a shard's part of a table, in memory that others may share.

    Parameters
    ----------
    params : (size,) array
        Of which the first elements are the table's.
    state : (state_rows, size) array
    ids : (n_rows,) int64 array
        One more than the id of a row; zeros at first.
    counts : (n_rows,) or (0,) int32 array
        Where an id needs to be seen more than once.
    seen : (n_rows,) or (0,) int64 array
        Where rows expire.
    since : (>= n_rows,) int64 array
        The update that each row is up to date with, see `LazyUpdate`.
    width : int
        Elements of a row.
    region : int
        Rows of which one rank has charge.
    zeros : int
        Elements of a new row that are zero; those after them are drawn, evenly up to `scale`.
    scale : float
    seed : int
    min_count : int
    start : sequence of float
        State of a new row, a number a row of state.
    normal : bool, default=False
        Whether elements are drawn from a normal distribution of that scale instead.
    """

    def __init__(
        self,
        params: Any,
        state: Any,
        ids: Any,
        counts: Any,
        seen: Any,
        since: Any,
        *,
        width: int,
        region: int,
        zeros: int,
        scale: float,
        seed: int,
        min_count: int,
        start: Sequence[float],
        normal: bool = False,
    ) -> None: ...
    def find(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row of each id, -1 where it has none."""
    def make(
        self, ids: NDArray[np.int64], now: int = 0, *, admit: bool = False
    ) -> NDArray[np.int64]:
        """The same for update `now`, made if need be; -2 where there is no room, -3: not yet.

        With `admit` they are made however seldom they have been seen.
        """
    def expire(self, first: int, last: int, before: int) -> None:
        """Give up the rows of some regions that were last touched before update `before`."""
