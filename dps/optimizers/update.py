"""An optimizer and a penalty, bound to the parameters that they update.

This module applies the penalty's proximal step to penalised coordinates and not to others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dps._kernels.lazy import LazyUpdate
from dps._kernels.optimizers import KINDS_OF_RUNS
from dps.optimizers.base import Optimizer
from dps.optimizers.schedules import Schedule


@dataclass(frozen=True)
class Rates:
    """Learning rates of the updates of each epoch of a fit.

    Examples
    --------
    >>> from dps.optimizers import InvScaling
    >>> Rates(InvScaling(1.0), updates=2, epochs=3, version=6, max_epochs=9).of_epoch(0)
    (array([0.5       , 0.47140452]), 6)
    """

    schedule: Schedule
    updates: int  # updates per epoch
    epochs: int  # epochs before the fit
    version: int  # updates before the fit
    max_epochs: int  # epochs of the fit, after which the schedule is not used
    width: int = 1  # elements of the vector per key
    table_rows: int = 0  # rows of the table for ids, which are keys below 0

    def of_epoch(self, epoch: int) -> tuple[NDArray[np.float64], int]:
        """Return the rates of an epoch of the fit, and the number of earlier updates."""
        return self._within(epoch), self.version + epoch * self.updates

    def of_three_epochs(self, epoch: int) -> tuple[NDArray[np.float64], int]:
        """Return the rates of the previous, this and the next epoch, for modes without waiting.

        Outside the fit, where there is no step, the nearest rate is repeated.
        """
        first, last = max(epoch - 1, 0), min(epoch + 1, self.max_epochs - 1)
        rates = np.concatenate([self._within(each) for each in range(first, last + 1)])
        missing = (first - (epoch - 1)) * self.updates, (epoch + 1 - last) * self.updates
        return np.pad(rates, missing, "edge"), self.version + (epoch - 1) * self.updates

    def from_last_flush(self, epochs: int, version: int) -> tuple[NDArray[np.float64], int]:
        """Return the rates of three epochs, after `epochs` epochs and `version` updates.

        An epoch may have fewer updates than expected, or one more.
        """
        within = [self._within(min(epochs + i, self.max_epochs - 1)) for i in range(3)]
        return np.pad(np.concatenate(within), (0, 3), "edge"), version

    def _within(self, epoch: int) -> NDArray[np.float64]:
        done = self.epochs + epoch
        return np.array([self.schedule(done + i / self.updates) for i in range(self.updates)])


@dataclass(frozen=True)
class Update:
    """One step of `optimizer` with the proximal step of an L1 and an L2 penalty."""

    optimizer: Optimizer
    l1: float  # factors of ``|w|_1`` and of ``|w|_2^2 / 2`` in the objective
    l2: float
    # Runs of coordinates with their `KINDS_OF_RUNS`, ascending, without gaps. Untrained coordinates
    # ignore the optimizer and the penalty: their gradient is subtracted.
    segments: tuple[tuple[int, int, int], ...]
    rates: Rates | None = None  # rates of lazy updates, for the keys that a batch touches

    def lazily(self, dtype: str) -> LazyUpdate:
        """Return the update for sparse gradients, see :class:`~dps._kernels.lazy.LazyUpdate`."""
        kernel = self.optimizer.native
        assert kernel is not None
        return LazyUpdate(kernel, self.l1, self.l2, self.segments, dtype == "float32")

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

        params: (n,) array.
        grad: (stop - start,) array, mean gradient of these coordinates, without penalty.
        state: (state_rows, n) array.
        step: number of this update, from 1.
        lr: learning rate of this update.
        Returns whether all updated parameters are finite.
        """
        finite = True
        for first, last, kind in self.segments:
            a, b = max(first, start), min(last, stop)
            penalised = kind == KINDS_OF_RUNS["penalised"]
            if a < b and kind == KINDS_OF_RUNS["untrained"]:
                params[a:b] -= grad[a - start : b - start]
                finite &= bool(np.isfinite(params[a:b]).all())
            elif a < b:
                finite &= (self.optimizer if penalised else self.optimizer._undecayed).update(
                    params[a:b],
                    grad[a - start : b - start],
                    state[:, a:b],
                    step=step,
                    lr=lr,
                    l1=self.l1 if penalised else 0.0,
                    l2=self.l2 if penalised else 0.0,
                )
        return finite
