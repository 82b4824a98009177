from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dps._kernels.rows import Gradient
from dps._runtime.step import Step

def shares(lefts: Sequence[int], wanted: int) -> list[int]:
    """How many of `wanted` rows come from each part, in proportion to what is left of each.

    What rounding leaves over goes to the largest remainders, one row each.
    """

class StepLoop:
    """Steps of epochs of one rank."""

    step: int
    until: int
    rest: list[tuple[Any, Any, int, int]]
    seen: int
    pushes: int
    skipped: int
    loss: float
    def __init__(self, gradient: Gradient, push: Step) -> None: ...
    def begin(
        self,
        rows: int,
        rates: NDArray[np.float64],
        key: int = ...,
        step: int = ...,
        loss: float = ...,
        seen: int = ...,
        pushes: int = ...,
    ) -> None:
        """Begin an epoch of `rows` rows, with a learning rate for each step.

        What the model draws by chance follows from `key` and the step. An epoch of which some
        steps are behind goes on at `step`, with what they had summed up to.
        """
    @property
    def done(self) -> bool:
        """Whether all steps of the epoch are behind."""
    def run(
        self, group: Sequence[tuple[Any, Any, int, int]]
    ) -> Literal["ran", "gradient", "update", "stopped", "loss"]:
        """Use up parts of blocks, `(block, order or None, start, stop)`.

        It ends before step `until` at the latest; `rest` is what is then left of the parts.

        Returns what was not finite, or that the window was stopped, or "ran".
        """
