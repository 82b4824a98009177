from collections.abc import Sequence
from typing import Any

from dps._kernels.gather import ColumnTable

class RowEncoder:
    """Pieces of rows, in the order in which they are stored in CSR.

    Codes are int8, int16 or int32 and begin at -1, which stands for a missing value; `table`
    (int32) says the column of each, from -1 on.
    """

    def __init__(self, n_rows: int, numbers: ColumnTable) -> None: ...
    @property
    def n_rows(self) -> int:
        """How many rows there are."""
    @property
    def bound(self) -> int:
        """Stored values that there may be at the most."""
    def add_number(self, place: int, first: int, fill: float, indicator: bool) -> None:
        """Column `place` of the numbers; NaN becomes `fill`, and 1 in the next column if wanted."""
    def add_codes(self, codes: Any, table: Any) -> None:
        """A 1 in column `table[code + 1]`; none where that is negative."""
    def add_cross(
        self, columns: Sequence[Any], hashes: Sequence[Any], first: int, buckets: int
    ) -> None:
        """A 1 in the bucket of the mixed hashes of several columns' codes; none if one is -1."""
    def add_bags(self, starts: Any, tokens: Any, table: Any) -> None:
        """A 1 in column `table[token + 1]` for each token `starts[row]:starts[row + 1]`."""
    def add_sequence(self, starts: Any, tokens: Any, values: Any, first: int, most: int) -> None:
        """`values[token]` of a row's tokens, side by side from column `first` on, at most `most`.

        Tokens below 0 are none.
        """
    def encode(self, indices: Any, data: Any, indptr: Any) -> int:
        """Write all rows as CSR into arrays with room for `bound`; how many values are stored."""
