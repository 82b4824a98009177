from typing import Any

import numpy as np
from numpy.typing import NDArray

class KeyList:
    """A list of distinct keys below `size`."""

    def __init__(self, size: int) -> None: ...
    def begin(self) -> None:
        """Begin a new batch: forget all keys."""
    def array(self) -> NDArray[np.int64]:
        """A copy of the keys."""

def deliver_keys(
    keys: Any, values: Any, width: int, slot_keys: Any, slot: Any, counts: Any, size: int
) -> bool:
    """Fill a slot, slice by slice of `width` elements; True if all values are finite.

    `keys` (m,) int64 are distinct and below `size`; `counts` (n_ranks,) int64 becomes how many
    of them are of each slice.
    """

def merge_keys(
    keys: Any,
    slots: Any,
    counts: Any,
    rows: Any,
    rank: int,
    start: int,
    marks: Any,
    merged: Any,
    sums: Any,
    total: float,
) -> int:
    """The mean over all ranks' slots in a slice, which begins at `start`; its number of keys.

    `keys`, `slots` are (n_ranks, stride), `counts` (n_ranks, n_ranks), `rows` (n_ranks,); `marks`
    (zeros before and after), `merged`, `sums` are as long as the slice.
    """
