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

class Gradient:
    """The gradient of a model, for native loops; by one thread at a time."""

    size: int
    single: bool
    keyed: bool
    def touched(self, block: BlockRows, order: Any, start: int, stop: int, keys: KeyList) -> None:
        """Add to `keys` the elements that rows `order[start:stop]`, or `start:stop`, touch.

        Where `keyed` is true, a gradient of rows of a sparse block has no others.
        """
    def add_batch(
        self, block: BlockRows, order: Any, start: int, stop: int, params: Any, out: Any
    ) -> float:
        """Add the gradient of rows `order[start:stop]`, or `start:stop`; the sum of losses."""
