from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps._kernels.rows import BlockRows, Gradient

class GradientSum:
    def __init__(
        self, gradient: Gradient, most: int, beat: Callable[[], None], every: float
    ) -> None:
        """`beat` is called while rows are added, where the last time is `every` seconds ago."""
    def begin(self, params: NDArray[np.floating]) -> None:
        """Begin a pass at a point, (n,), which must not change until its end."""
    def add(self, block: BlockRows, order: Any, start: int, stop: int) -> None:
        """Add rows `order[start:stop]`, or `start:stop`."""
    def end(self) -> tuple[float, NDArray[np.floating]]:
        """The sums of losses and of gradients, the latter in the model's type."""

class Pass:
    def __init__(self, sum: GradientSum, parts: Sequence[tuple[BlockRows, Any, int, int]]) -> None:
        """Each part is what `GradientSum.add` takes; for loops without the interpreter."""
    @property
    def count(self) -> int:
        """Rows."""
