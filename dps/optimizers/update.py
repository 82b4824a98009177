"""An optimizer and a penalty, bound to the parameters they will be applied to.

Owns how the penalty's proximal step is laid over penalised and free coordinates;
knows nothing of who holds the parameters or when a gradient is applied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps.optimizers.base import Optimizer

__all__ = ["Update"]


@dataclass(frozen=True)
class Update:
    """One step of `optimizer` with the proximal step of an L1 and an L2 penalty.

    Parameters
    ----------
    optimizer : Optimizer
    l1, l2 : float
        Factors of ``|w|_1`` and of ``|w|_2^2 / 2`` in the objective.
    segments : tuple of (int, int, bool)
        Runs of coordinates and whether they are penalised, ascending, without gaps.
    """

    optimizer: Optimizer
    l1: float
    l2: float
    segments: tuple[tuple[int, int, bool], ...]

    def for_kernels(self) -> tuple[Any, float, float, tuple[tuple[int, int, bool], ...]]:
        """The optimizer's kernel, `l1`, `l2` and `segments`."""
        return self.optimizer.native, self.l1, self.l2, self.segments

    def apply(
        self,
        params: NDArray[np.floating],
        grad: NDArray[np.floating],
        state: NDArray[np.floating],
        start: int,
        stop: int,
        *,
        step: int,
        lr: float,
    ) -> bool:
        """Update ``params[start:stop]`` and its state in place.

        Parameters
        ----------
        params : (n,) array
        grad : (stop - start,) array
            Mean gradient of these coordinates, without penalty.
        state : (state_rows, n) array
        step : int
            Number of this update, from 1.
        lr : float
            Learning rate of this update.

        Returns
        -------
        bool
            Whether all updated parameters are finite.
        """
        finite = True
        for first, last, penalised in self.segments:
            a, b = max(first, start), min(last, stop)
            if a < b:
                finite &= self.optimizer.update(
                    params[a:b],
                    grad[a - start : b - start],
                    state[:, a:b],
                    step=step,
                    lr=lr,
                    l1=self.l1 if penalised else 0.0,
                    l2=self.l2 if penalised else 0.0,
                )
        return finite
