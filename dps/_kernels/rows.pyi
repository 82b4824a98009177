from typing import Any

from dps._kernels.gather import ColumnTable
from dps._kernels.keys import KeyList

class BlockRows:
    """Rows of a block with their targets and weights, as kernels read them.

    Arrays are kept alive and must not change. `y` is (n,) or (n, width) in the
    model's dtype, `weight` (n,) or None; both are in the order of the
    one batch that is made if `picked`, else in the block's.
    """

    @staticmethod
    def dense(values: Any, y: Any, weight: Any = ..., picked: bool = ...) -> BlockRows: ...
    @staticmethod
    def csr(
        data: Any,
        indices: Any,
        indptr: Any,
        n_features: int,
        y: Any,
        weight: Any = ...,
        picked: bool = ...,
    ) -> BlockRows: ...
    @staticmethod
    def columns(table: ColumnTable, y: Any, weight: Any = ...) -> BlockRows: ...
    def __len__(self) -> int: ...

class KeyedRows(KeyList):
    """What a batch touches, and its CSR rows with places among these keys instead of columns."""

class Gradient:
    """The gradient of a model, for native loops; by one thread at a time."""

    size: int
    single: bool
    keyed: bool
    key_width: int
    tabled: bool
    def touch_batch(
        self, block: BlockRows, order: Any, start: int, stop: int, keys: KeyedRows
    ) -> None:
        """Have in `keys` CSR rows `order[start:stop]`, or `start:stop`, and what they touch.

        Where `keyed` is true, a gradient of rows of a sparse block has no others.
        """
    def add_touched_batch(
        self,
        block: BlockRows,
        order: Any,
        start: int,
        stop: int,
        keys: KeyedRows,
        params: Any,
        out: Any,
    ) -> float:
        """As `add_batch`, of the rows of the last `touch_batch`.

        `params` and `out` are of the keys, `key_width` elements each, side by side, in their order.
        """
    def add_batch(
        self,
        block: BlockRows,
        order: Any,
        start: int,
        stop: int,
        params: Any,
        out: Any,
        key: int = ...,
    ) -> float:
        """Add the gradient of rows `order[start:stop]`, or `start:stop`; the sum of losses.

        What a model draws by chance follows from `key`.
        """
