from typing import Any

from dps._kernels.rows import BlockRows, Gradient

class WaitingGradient(Gradient):
    """A gradient whose rows wait until a block of them is full; by one thread at a time."""

    def raw_batch(self, block: BlockRows, order: Any, params: Any, out: Any) -> None:
        """Write the raw outputs of rows `order`, or of all, (m, n_outputs)."""
