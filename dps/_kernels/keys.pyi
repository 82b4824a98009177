from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

class KeyList:
    """A list of distinct keys below `size`, in the order in which they come.

    Memory is for as many as there are, and some MB at the most for what is below `size`.
    """

    def __init__(self, size: int) -> None: ...
    def begin(self) -> None:
        """Begin a new batch: forget all keys."""
    def add(self, keys: Sequence[int]) -> list[int]:
        """Add keys; where these stand."""
    def array(self) -> NDArray[np.int64]:
        """A copy of the keys."""

def deliver_keys(
    keys: Any,
    values: Any,
    width: int,
    slot_keys: Any,
    slot: Any,
    counts: Any,
    size: int,
    each: int = 1,
) -> bool:
    """Fill a slot, slice by slice of `width` keys; True if all values are finite.

    `keys` (m,) int64 are distinct and below `size`, `values` (m * each,); `counts` (n_ranks,) int64
    becomes how many keys are of each slice.
    """

def merge_keys(
    keys: Any,
    slots: Any,
    counts: Any,
    rows: Any,
    rank: int,
    merged: KeyList,
    sums: Any,
    total: float,
    each: int = 1,
) -> int:
    """The mean over all ranks' slots in the slice of one; its number of keys.

    `keys` are (n_ranks, stride), `slots` (n_ranks, stride * each), `counts` (n_ranks, n_ranks),
    `rows` (n_ranks,); in `sums` there is room for as many values as the slice has in all slots.
    """
