from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps._kernels.rows import Gradient

class GradientSum:
    def __init__(
        self, gradient: Gradient, most: int, beat: Callable[[], None], every: float
    ) -> None:
        """`beat` is called while rows are added, where the last time is `every` seconds ago."""
    def begin(self, params: NDArray[np.floating]) -> None:
        """Begin a pass at a point, (n,), which must not change until its end."""
    def add(self, block: Any, order: Any, start: int, stop: int) -> None:
        """Add rows `order[start:stop]`, or `start:stop`."""
    def end(self) -> tuple[float, NDArray[np.floating]]:
        """The sums of losses and of gradients, the latter in the model's type."""

class Pass:
    def __init__(self, sum: GradientSum, parts: Sequence[tuple[Any, Any, int, int]]) -> None:
        """Each part is what `GradientSum.add` takes."""
    @property
    def count(self) -> int:
        """Rows."""
    def sums(self, params: NDArray[np.floating]) -> tuple[float, NDArray[np.floating]]:
        """The sums of losses and of gradients at a point."""

class StreamedPass(Pass):
    """Rows that are read anew in each pass: `rows` gives what `GradientSum.add` takes."""

    def __init__(
        self, sum: GradientSum, rows: Callable[[], Iterable[tuple[Any, Any, int, int]]], count: int
    ) -> None: ...
