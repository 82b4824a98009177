"""The sums of losses and gradients of a pass, by a kernel or in Python.

In the model's dtype over so many rows as keep it exact enough, in double beyond. Of pieces of the
same length both have the same bits; a kernel keeps rows in cache by itself, and takes longer ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dps._kernels.passes import GradientSum, Pass
from dps._kernels.rows import Gradient
from dps.data.blocks import Block
from dps.models import Model

__all__ = ["KernelSum", "PythonSum", "Sum", "sum_for"]

#: Rows after which a sum in the model's dtype is added to the one in double.
_SUMMED = 1 << 16
#: Bytes of a piece of X that stay in a core's cache between forward and backward.
_CACHED = 1 << 20
_FEWEST, _MOST = 256, 8192  # rows of a piece
_BEAT_EVERY = 0.2  # seconds


class Sum(Protocol):
    """What adds up a pass."""

    def begin(self, params: NDArray[np.floating]) -> None:
        """Begin a pass at a point, (n,), which must not change until its end."""
        ...

    def add(self, block: Block, order: NDArray[np.int64] | None, start: int, stop: int) -> None:
        """Add rows ``order[start:stop]``, or ``start:stop``."""
        ...

    def end(self) -> tuple[float, NDArray[np.floating]]:
        """The sums of losses and of gradients, the latter in the model's dtype."""
        ...


def sum_for(model: Model, row_elements: float, beat: Callable[[], None]) -> Sum:
    """The sum for a model.

    Parameters
    ----------
    model : Model
    row_elements : float
        Stored values of X a row.
    beat : callable
        Called now and then while rows are added.
    """
    if model.kernel is not None:  # it keeps rows in cache by itself
        return KernelSum(model.kernel, beat)
    cached = _CACHED / (row_elements * model.dtype.itemsize)
    return PythonSum(model, int(min(_MOST, max(_FEWEST, cached))), beat)


class KernelSum:
    """A block in one call, without the interpreter."""

    def __init__(self, kernel: Gradient, beat: Callable[[], None]) -> None:
        self._sum = GradientSum(kernel, _SUMMED, beat, _BEAT_EVERY)
        self.begin, self.end = self._sum.begin, self._sum.end

    def over(self, rows: Iterable[tuple[Block, NDArray[np.int64] | None, int, int]]) -> Pass:
        """The same rows again and again, for loops without the interpreter; see :meth:`Sum.add`."""
        return Pass(self._sum, [(block.for_kernels, order, a, b) for block, order, a, b in rows])

    def add(self, block: Block, order: NDArray[np.int64] | None, start: int, stop: int) -> None:
        """Add rows, see :meth:`Sum.add`."""
        self._sum.add(block.for_kernels, order, start, stop)


class PythonSum:
    """Rows in pieces that fit in a core's cache, for gradients that are written in Python."""

    def __init__(self, model: Model, at_once: int, beat: Callable[[], None]) -> None:
        self._model = model
        self._at_once = at_once
        self._beat = beat
        self._part = np.zeros(model.layout.size, model.dtype)

    def begin(self, params: NDArray[np.floating]) -> None:
        """Begin a pass, see :meth:`Sum.begin`."""
        self._params = params
        self._loss, self._summed = 0.0, 0
        self._part.fill(0)
        self._whole: NDArray[np.float64] | None = None
        self._beaten = time.monotonic()

    def add(self, block: Block, order: NDArray[np.int64] | None, start: int, stop: int) -> None:
        """Add rows, see :meth:`Sum.add`."""
        for first in range(start, stop, self._at_once):
            if self._summed >= _SUMMED:
                self._fold()
            rows = block.segment(first, min(first + self._at_once, stop), order)
            self._loss += self._model.loss_gradient(
                self._params, rows.X, rows.y, rows.weight, out=self._part
            )
            self._summed += len(rows.y)
            if time.monotonic() > self._beaten + _BEAT_EVERY:
                self._beat()
                self._beaten = time.monotonic()

    def end(self) -> tuple[float, NDArray[np.floating]]:
        """The sums, see :meth:`Sum.end`."""
        return self._loss, self._fold().astype(self._part.dtype)

    def _fold(self) -> NDArray[np.float64]:
        part = self._part.astype(np.float64)
        self._whole = part if self._whole is None else self._whole + part
        self._part.fill(0)
        self._summed = 0
        return self._whole
